"""A study of two hospitals, and a port that nobody listens at: what kits are made of."""

import os
import socket
from contextlib import suppress
from itertools import cycle, islice

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


def ports_of(process):
    """A hundred ports for each process, below those that the system gives to whoever asks for any."""
    return range(20_000 + process % 100 * 100, 20_100 + process % 100 * 100)


_PORTS = cycle(ports_of(os.getpid()))


def free_port():
    """A port that nobody listens at, nor takes before it is used: no other worker has it among its own."""
    for port in islice(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("all ports of this process are taken")


def study(port=8443, rounds=5):
    return Study.from_toml(TOML.format(port=port, rounds=rounds))
