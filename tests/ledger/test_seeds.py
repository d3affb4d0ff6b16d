"""Noise that a seed made is remembered by the ledger, in whatever attempt, and by no certificate forgotten."""

import json

import numpy as np
import pytest

from discreet import Budget, Gaussian, Ledger
from discreet.certificate import Certificate, CertificateRejected
from discreet.certificate.guarantees import SEEDED
from discreet.core.noise import BoundedSum
from discreet.core.randomness import RandomStream
from discreet.errors import LedgerCorrupted
from discreet.ledger import GaussianFilter, Till, TruncatedRenyiFilter
from discreet.ledger.ledger_state import LedgerState, Statement
from discreet.linear import PrivateLinearRegression
from discreet.plan.plan import Plan
from discreet.statistics.mean import private_mean
from discreet.trusted.permits import Charger, StepNoise, pay_at_once

RULE = GaussianFilter(Budget(1.0, 1e-6))
EVENT = Gaussian(40.0)
SECRET, SEED = RandomStream(), RandomStream(unsafe_seed=1)


def plan(name="fit", **settings):
    return Plan.adaptive(name, RULE, settings)


def attempt(ledger, of, stream, steps=1):
    charger = Charger(Till.open(ledger, of).run(of.name, EVENT * 9), stream)
    for _ in range(steps):
        charger.next_step(StepNoise.of_event(EVENT), 1.0).release(BoundedSum(np.zeros(1), 1.0))


@pytest.mark.parametrize("streams", [(SEED,), (SEED, SECRET), (SECRET, SEED, SECRET)])
def test_a_seed_of_any_attempt_spoils_the_run(streams):
    with Ledger.in_memory(RULE) as ledger:
        for stream in streams:
            attempt(ledger, plan(), stream)
        assert ledger.runs()["fit"].seeded
        certificate = Certificate.of(ledger, plan(), trusted=True)
        assert not certificate.trusted
        with pytest.raises(CertificateRejected, match="nothing is private"):
            certificate.verify(ledger)


def test_without_a_seed_entries_are_what_they_were():
    with Ledger.in_memory(RULE) as ledger:
        attempt(ledger, plan(), SECRET, steps=2)
        assert Certificate.of(ledger, plan()).trusted
        reserved = [entry for entry in map(json.loads, ledger.entries()) if entry[0] == "reserve"]
        assert reserved == [["reserve", "fit", 1, 1, 1, 0, 0], ["reserve", "fit", 1, 2, 1, 0, 1]]


def test_a_payment_at_once_is_marked_too():
    with Ledger.in_memory(RULE) as ledger:
        pay_at_once(Till.open(ledger, plan()), StepNoise.of_event(EVENT), 1.0, SEED, name="fit")
        assert ledger.runs()["fit"].seeded
        assert '0,0,"seed"]' in ledger.entries()[-1]
        assert not Certificate.of(ledger, plan()).trusted


def test_a_certificate_that_claims_entropy_is_rejected_by_the_ledger():
    """Its text can be altered; the entries cannot."""
    with Ledger.in_memory(RULE) as ledger:
        attempt(ledger, plan(), SECRET)
        before = Certificate.of(ledger, plan())
        attempt(ledger, plan(), SEED)
        forged = Certificate(
            *(before.plan, ledger.statement(), before.guarantee, before.together, before.arithmetic),
            *(True, before.not_covered, before.versions),
        )
        forged = Certificate.from_json(forged.to_json())
        assert forged.verify().outcome == "consistent"  # nobody vouches for it
        for certificate in (forged, before):  # a seed after the certificate was made counts, too
            with pytest.raises(CertificateRejected, match="a seed made the noise"):
                certificate.verify(ledger)


def test_seeds_of_other_runs_are_named_as_not_covered():
    with Ledger.in_memory(RULE) as ledger:
        attempt(ledger, plan("other"), SEED)
        attempt(ledger, plan(), SECRET)
        certificate = Certificate.of(ledger, plan())
        assert certificate.trusted
        assert SEEDED in certificate.not_covered
        assert certificate.verify(ledger).vouched
        rest = tuple(text for text in certificate.not_covered if text != SEEDED)
        hiding = Certificate.from_json(Certificate(**{**vars(certificate), "not_covered": rest}).to_json())
        with pytest.raises(CertificateRejected, match="hides something"):
            hiding.verify(ledger)


def test_a_plan_answers_for_the_seeds_of_those_that_it_continues():
    with Ledger.in_memory(RULE) as ledger:
        attempt(ledger, plan("first"), SEED)
        following = plan("second", continues=[plan("first").digest()])
        attempt(ledger, following, SECRET)
        assert not Certificate.of(ledger, following).trusted


def test_entries_of_other_randomness_are_refused():
    with Ledger.in_memory(RULE) as ledger:
        attempt(ledger, plan(), SEED)
        entries = ledger.entries()
    assert Statement.of_entries(entries).runs[0].seeded
    for words in ('"dice"', '"seed","seed"'):
        with pytest.raises(LedgerCorrupted, match="randomness"):
            LedgerState().follow([*entries[:-1], entries[-1].replace('"seed"', words)])


@pytest.mark.parametrize("seed", [None, 5])
def test_statistics_and_fits_mark_what_they_seed(seed):
    rows = np.random.default_rng(0).uniform(size=(400, 2))
    budget = Budget(1.0, 1e-5, "replace-one")
    stream = None if seed is None else RandomStream(unsafe_seed=seed)
    settings = {"neighbours": "replace-one", "bounds": (0, 1), "target_bounds": (0, 2)}
    wide = Budget(4.0, 1e-4, "replace-one")
    mixed, gaussian = TruncatedRenyiFilter(wide, 10.0, 3.0, 1e-6), GaussianFilter(wide)
    with Ledger.in_memory(mixed) as means, Ledger.in_memory(gaussian) as fits:
        private_mean(rows[:, 0], budget, (0.0, 1.0), stream=stream, ledger=means)
        PrivateLinearRegression(1.0, 1e-5, unsafe_seed=seed, ledger=fits, **settings).fit(
            rows, rows.sum(axis=1)
        )
        for ledger in (means, fits):
            assert {record.seeded for record in ledger.runs().values()} == {seed is not None}
