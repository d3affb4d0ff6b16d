"""What holds for tests and for examples in docstrings alike: chance is decided by the name of a test.

Noise comes from ``os.urandom``, models are drawn by global generators. A test that asserts anything about either
would fail now and then, for nobody's fault, and otherwise on another worker. So the system's entropy is replaced by
a stream that begins anew with every test, from its name and ``DISCREET_TEST_SALT``, and the global generators are
seeded likewise. Nothing below ``os.urandom`` knows. Another salt is another throw of the dice: run a file with many
to learn how often its tests would fail (``for salt in $(seq 50); do DISCREET_TEST_SALT=$salt pytest FILE; done``).
``secrets`` and ``random.SystemRandom`` read the same stream. Other processes, also forked ones, have the system's
entropy; keys of ``cryptography`` do, too.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from importlib.util import find_spec
from threading import Lock

import pytest

ADAPTERS = {
    "hugging_face.py": "accelerate",
    "accelerated.py": "accelerate",
    "lightning_module.py": "lightning",
}

# Modules that adapt to a package are looked through for examples only where it is installed.
collect_ignore = [
    f"src/discreet/adapters/{name}" for name, package in ADAPTERS.items() if find_spec(package) is None
]


class Entropy:
    """``os.urandom`` for this process: what it answers follows from a name and from how often it was asked."""

    def __init__(self, salt: str) -> None:
        self._salt, self._system, self._process, self._lock = salt, os.urandom, os.getpid(), Lock()
        self.begin("")

    def begin(self, name: str) -> None:
        """Begin anew, with the global generators."""
        self._key, self._asked = hashlib.sha256(f"{self._salt}/{name}".encode()).digest(), 0
        seed = int.from_bytes(self._key[:4], "big")
        random.seed(seed)
        if "numpy" in sys.modules:  # not loaded here: tests/conftest.py first says how many threads it has
            sys.modules["numpy"].random.seed(seed)
        if "torch" in sys.modules:
            # Not torch.manual_seed, which formats the stack once for each kind of device that is absent.
            sys.modules["torch"].default_generator.manual_seed(seed)

    def __call__(self, size: int, /) -> bytes:
        if os.getpid() != self._process:
            return self._system(size)
        with self._lock:
            self._asked += 1
            asked = self._asked
        return hashlib.shake_256(self._key + asked.to_bytes(8, "big")).digest(size)


if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as for a job in the background: tests of Ctrl-C would fail
    signal.signal(signal.SIGINT, signal.default_int_handler)

ENTROPY = Entropy(os.environ.get("DISCREET_TEST_SALT", ""))
os.urandom = ENTROPY
random._urandom = ENTROPY  # type: ignore[attr-defined]  # of random.SystemRandom, and so of secrets


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    # Workers import the same modules at the same time: equal streams would name equal temporary files (uuid4).
    ENTROPY.begin(f"{collector.nodeid} {os.environ.get('PYTEST_XDIST_WORKER', '')}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    ENTROPY.begin(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Whatever fixtures were made for this test or for an earlier one, the test itself begins alike."""
    ENTROPY.begin(f"{item.nodeid} call")
