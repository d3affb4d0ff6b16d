"""Our own engines under our own detectors: as shipped they pass, and every seeded fault is found.

benchmarks/audit_faults.py tries every fault on every engine; here the slow engines are tried on those that touch a
part of their own, and on some of the noise.

False alarms: an engine without a fault fails with probability at most ALPHA; the whole file with one in a million. Of
the faults, ten per cent less noise is the hardest: it moves the mean square of 24 000 draws by more than 20 standard
errors.
"""

from functools import cache

import pytest

from discreet.audit.examine import examine
from support.audit_faults import ENGINES, FAULTS, NOISE_FAULTS, subject

ALPHA = 1e-7
SETTINGS = {"alpha": ALPHA, "pairs": 12, "draws": 6000}

# Which detectors must find a fault. Others may find it too: a wrong divisor, say, changes the noise.
FOUND_BY = {
    "clip after mean": {"sensitivity"},
    "realised batch size as divisor": {"sensitivity", "noise, with one record more"},
    "replace-one sold with sensitivity C": {"sensitivity"},
    "shuffled batches sold as Poisson": {"sampling"},
} | {fault: {"noise of a run", "release less its sum"} for fault in NOISE_FAULTS}

engine_of = cache(lambda name: ENGINES[name]())

SLOW = {
    "PrivateRun on torch": ("noise x 0.9", "clip after mean", "realised batch size as divisor"),
    "SGD2 parties": ("noise x 0.9", "clip after mean", "shuffled batches sold as Poisson"),
}
CASES = [(engine, fault) for engine in ENGINES for fault in SLOW.get(engine, FAULTS) if fault != "none"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_as_shipped_passes(engine):
    examination = examine(*subject(engine_of(engine), "none"), **SETTINGS)
    assert len(examination.findings) == 5
    assert examination.passed, str(examination)


@pytest.mark.parametrize(("engine", "fault"), CASES)
def test_a_fault_is_found(engine, fault):
    examination = examine(*subject(engine_of(engine), fault), **SETTINGS)
    found = {finding.name for finding in examination.findings if not finding.passed}
    assert found >= FOUND_BY[fault], str(examination)
    assert "sampling" not in found or fault == "shuffled batches sold as Poisson"


def test_every_fault_has_a_detector():
    assert set(FOUND_BY) == set(FAULTS) - {"none"}
