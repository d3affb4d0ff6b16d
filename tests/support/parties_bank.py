"""Small studies, parties on disk, and transports that misbehave, for the tests of discreet.parties."""

from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.certificate.signatures import public_key_of
from discreet.core.randomness import RandomStream
from discreet.ledger import Ledger
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Party, Study
from discreet.parties.messages import Message, Roster
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation, Network, Privacy, Training

SIZES = {"ann": 30, "bob": 20, "cem": 50}
DIMENSION = 4
KEYS = {name: Ed25519PrivateKey.generate() for name in (*SIZES, "stranger")}
ROSTER = {name: public_key_of(KEYS[name]) for name in SIZES}


def study(algorithm="sgd2", *, sizes=SIZES, privacy=(1.0, 1e-3), aggregation=None, **training):
    defaults = {"rounds": 20} if algorithm == "sgd2" else {"tokens": 200}
    settings = {"clip_norm": 1.0, "learning_rate": 0.5, **defaults, **training}
    model = {"kind": "logistic", "dimension": DIMENSION}
    budget = privacy if isinstance(privacy, Privacy) else Privacy(*privacy)
    plan = Study("tiny", algorithm, sizes, budget, Training(**settings), model)
    return replace(plan, aggregation=aggregation or Aggregation(), network=Network(timeout=0.5))


def table(records, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(records, DIMENSION - 1)) * 2
    return X, (X @ [1.0, -2.0, 0.5] + rng.logistic(size=records) > 0).astype(float)


def tables(sizes=SIZES):
    return {name: table(count, seed) for seed, (name, count) in enumerate(sizes.items())}


def holders(sizes=SIZES, clip_norm=1.0):
    return {n: LinearHolder(Logistic(), *rows, clip_norm=clip_norm) for n, rows in tables(sizes).items()}


def zero_holders(sizes=SIZES):
    """Records whose gradients are zero, because no loss knows their targets: what is sent is noise alone."""
    rows = {name: (np.zeros((count, DIMENSION - 1)), np.full(count, 0.5)) for name, count in sizes.items()}
    return {name: LinearHolder(Logistic(), *row, clip_norm=1.0) for name, row in rows.items()}


class Silent(RandomStream):
    """A stream whose noise is zero, to compare joint training with that on one machine."""

    def __init__(self):
        super().__init__(unsafe_seed=0)

    def each_block(self, law, size, scale, dtype, take):
        take(slice(0, size), np.zeros(size, dtype))

    def discrete_gaussian(self, sigma, shape=()):
        return np.zeros(shape, np.int64)


def ledger_of(plan, name, path=None):
    """A new ledger, or the one that is there."""
    rule = PartyPlan(plan, name).rule
    if path is None:
        return Ledger.in_memory(rule)
    return Ledger.open(path, rule) if path.exists() else Ledger.create(path, rule)


def party_of(plan, name, *, holder=None, ledger=None, stream=None, roster=ROSTER):
    holder = holders()[name] if holder is None else holder
    ledger = ledger_of(plan, name) if ledger is None else ledger
    return Party(name, plan, holder, ledger, KEYS[name], roster, stream=stream)


def unsigned_party(plan, name, *, holder=None, ledger=None, stream=None):
    holder = holders()[name] if holder is None else holder
    ledger = ledger_of(plan, name) if ledger is None else ledger
    return Party(name, plan, holder, ledger, None, Roster.without_wire(), stream=stream)


def hello(plan, name, key=b""):
    return Message(plan.digest(), "hello", 0, name, np.frombuffer(key, np.uint8)).encode()


def read(frame):
    return Message.decode(frame)


def single_machine(plan, gradient_of, steps):
    """Plain projected gradient descent, written out again."""
    theta, radius = np.zeros(DIMENSION), plan.training.radius
    first, second = np.zeros(DIMENSION), np.zeros(DIMENSION)
    path = [theta]
    for t in range(1, steps + 1):
        g = gradient_of(theta, t)
        if plan.training.optimizer == "sgd":
            move = g
        elif plan.training.optimizer == "momentum":
            move = first = 0.9 * first + g
        else:
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            move = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        theta = theta - plan.training.learning_rate * move
        if radius is not None and np.linalg.norm(theta) > radius:
            theta = theta * radius / np.linalg.norm(theta)
        path.append(theta)
    return theta, np.mean(path, 0)


def clipped_gradients(theta, X, y, clip_norm=1.0):
    """The clipped gradient of each record, one by one."""
    Z = np.hstack([np.ones((len(X), 1)), X])
    with np.errstate(over="ignore", divide="ignore"):
        rows = (1 / (1 + np.exp(-Z @ theta)) - y)[:, None] * Z
        return rows * np.minimum(1.0, clip_norm / np.linalg.norm(rows, axis=1, keepdims=True))
