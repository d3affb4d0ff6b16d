"""A study of two hospitals, and a port that nobody listens at: what kits are made of."""

import socket

from discreet.parties.study import Study

TOML = """
[study]
name = "kits"
algorithm = "sgd2"
[parties]
hospital-a = 120
hospital-b = 80
[privacy]
epsilon = 1.0
delta = 1e-6
[training]
rounds = {rounds}
clip_norm = 1.0
[model]
kind = "logistic"
dimension = 3
[network]
coordinator = "localhost:{port}"
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def study(port=8443, rounds=5):
    return Study.from_toml(TOML.format(port=port, rounds=rounds))
