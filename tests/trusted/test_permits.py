"""Permits: the noise that is drawn is the noise that was charged, and nothing is drawn before the charge."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from discreet import Gaussian, Laplace, PlanViolation, Recipe
from discreet.core.clipping import AdaptiveClip
from discreet.core.noise import BoundedSum, grid_for
from discreet.core.randomness import RandomStream
from discreet.errors import LedgerUnavailable
from discreet.events import ApproximateDP, PoissonSampled
from discreet.ledger import FixedPlan, Till
from discreet.parties import sgd2
from discreet.parties.messages import Message
from discreet.parties.party_plan import PartyPlan
from discreet.parties.study import Aggregation
from discreet.plan.stage import Stage
from discreet.pytorch import PrivateRun
from discreet.trusted import permits
from discreet.trusted.permits import Charger, Draw, NoisePermit, StepNoise, covers
from support.paid import Broken, Noting, paid
from support.parties_bank import DIMENSION, hello, holders, party_of, study

ZEROS = BoundedSum(np.zeros(3), clip_norm=1.0)


def stage(sampling="poisson", bands=1, noise=2.0):
    return Stage("descent", sampling, 60, 10, 12, 1.0, noise, bands)


@settings(max_examples=200, deadline=None)
@given(
    noise=st.floats(1e-3, 1e3),
    ratio=st.floats(1.0001, 1e4),
    processes=st.integers(1, 9),
    bands=st.sampled_from([1, 2, 4]),
)
def test_the_noise_of_every_stage_covers_its_charge(noise, ratio, processes, bands):
    """Also for the count of an adaptive clip norm, in parts; compared in exact fractions when it is made."""
    adaptive = AdaptiveClip(1.0, batch_size=10, count_noise=noise * ratio / 2)
    made = StepNoise.of_stage(stage(noise=noise), adaptive, processes=processes)
    of_sum, count = made.draws["sum"].noise, made.draws["count"].noise
    z, parts = Fraction(noise), processes * Fraction(count.noise_multiplier) ** 2
    assert 1 / Fraction(of_sum.noise_multiplier) ** 2 + 1 / parts <= 1 / z**2
    assert StepNoise.of_stage(stage("random-allocation", 1, noise)).steps == 6
    assert StepNoise.of_stage(stage(bands=bands, noise=noise)).steps == bands


@pytest.mark.parametrize(
    ("event", "draws"),
    [
        (Gaussian(2.0), [Draw(Gaussian(np.nextafter(2.0, 0)))]),
        (PoissonSampled(0.1, Gaussian(2.0)), [Draw(Gaussian(2.0)), Draw(Gaussian(1e9))]),
        (Gaussian(2.0), [Draw(Gaussian(2.0), shares=2)]),
        (Gaussian(2.0), [Draw(Gaussian(2.0), bands=2)]),
        (Gaussian(2.0), [Draw(Gaussian(0.0))]),
        (Gaussian(2.0), [Draw(Laplace(9.0))]),
        (Laplace(2.0), [Draw(Laplace(1.9))]),
        (Laplace(2.0), [Draw(Gaussian(9.0))]),
        (Laplace(2.0), [Draw(Laplace(9.0)), Draw(Laplace(9.0))]),
        (ApproximateDP(1.0, 1e-6), [Draw(Gaussian(9.0))]),
    ],
)
def test_less_noise_than_is_charged_is_refused(event, draws):
    assert not covers(event, draws)
    with pytest.raises(PlanViolation, match=r"Less noise would be drawn|not one sampled mechanism"):
        StepNoise(event, dict(enumerate(draws)))


def test_noise_that_covers_is_accepted():
    assert covers(Gaussian(2.0), [Draw(Gaussian(2.0))])
    assert covers(Gaussian(2.0), [Draw(Gaussian(2.0), shares=2, copies=2)])
    assert covers(Laplace(2.0), [Draw(Laplace(2.0))])
    with pytest.raises(PlanViolation, match="ApproximateDP cannot be added"):
        StepNoise.of_event(ApproximateDP(1.0, 1e-6))


def test_a_resume_that_draws_another_noise_than_it_pays_is_found():
    """The broken twin of a resume: the sum's noise by one rule, the count's by another."""
    given, kept = (AdaptiveClip(1.0, batch_size=10, count_noise=noise) for noise in (50.0, 1.5))
    charge, z = stage().charge, stage().noise
    honest = {"sum": Draw(given.of_sum(z)), "count": Draw(given.count_event)}
    StepNoise(charge, honest)
    with pytest.raises(PlanViolation, match="Less noise"):
        StepNoise(charge, honest | {"count": Draw(kept.count_event)})


def test_wrong_requests_are_refused_before_anything_is_drawn():
    stream = Noting()
    with pytest.raises(PlanViolation, match="Only a charge"):
        NoisePermit(StepNoise.of_event(Gaussian(2.0)), 1.0, stream, 1, object())
    permit, grid = paid(Gaussian(2.0), 1.0, stream), grid_for(Gaussian(2.0), 1.0, 100)
    other = paid(Gaussian(2.0), 1.0, stream)
    wrong = [
        lambda: permit.release(np.zeros(3)),
        lambda: permit.release(BoundedSum(np.zeros(3), 0.5)),
        lambda: permit.release(BoundedSum(np.zeros(3, np.int64), 1.0, grid=grid)),
        lambda: permit.release(ZEROS, "count"),
        lambda: permit.randomness(),
        lambda: permit.check(other._noise),
    ]
    for request in wrong:
        with pytest.raises(PlanViolation):
            request()
    assert stream.draws == 0
    permit.check(permit._noise)
    permit.release(ZEROS)
    drawn = stream.draws
    assert drawn > 0
    with pytest.raises(PlanViolation, match="no further release"):
        permit.release(ZEROS)
    assert stream.draws == drawn


def test_shares_and_choices_need_a_permit_of_their_own():
    grid, stream = grid_for(Gaussian(2.0), 1.0, 100), Noting()
    counts = BoundedSum(np.zeros(3, np.int64), 1.0, grid=grid)
    shared = StepNoise(Gaussian(2.0), {"sum": Draw(Gaussian(2.0), shares=2, copies=2)}, grid=grid)
    with pytest.raises(PlanViolation, match="share of the noise"):
        paid(shared, 1.0, stream).release(counts)
    pure = StepNoise.of_event(Laplace(2.0), grid)
    with pytest.raises(PlanViolation, match="Only Gaussian"):
        paid(pure, 1.0, stream).add_noise_share(counts)
    assert stream.draws == 0
    assert paid(shared, 1.0, stream).add_noise_share(counts).dtype == np.int64
    choice = paid(StepNoise.of_choice(ApproximateDP(1.0, 1e-6), "random search"), None, stream)
    assert choice.randomness() is stream
    with pytest.raises(PlanViolation, match="release of choice"):
        choice.randomness()


def test_a_permit_cannot_be_copied():
    permit = paid(Gaussian(2.0), 1.0, Noting())
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PlanViolation, match="cannot be copied"):
            duplicate(permit)


@pytest.mark.parametrize(
    ("event", "theorem"),
    [
        (ApproximateDP(1.0, 1e-6), "my own theorem"),
        (ApproximateDP(1.0, 1e-6), None),
        (Gaussian(2.0), "random search"),
        (ApproximateDP(1.0, 0.0), "Gibbs sampling"),
        (PoissonSampled(0.1, Gaussian(2.0)), "Gibbs sampling"),
    ],
)
def test_a_choice_costs_what_a_theorem_says(event, theorem):
    with pytest.raises(PlanViolation, match="No theorem is known"):
        StepNoise.of_choice(event, theorem)


def test_the_number_of_steps_follows_from_the_plan():
    """A caller who could name it would draw a second time for one charge."""
    with pytest.raises(TypeError, match="steps"):
        StepNoise(Gaussian(2.0), {"sum": Draw(Gaussian(2.0))}, steps=2)
    for sampling, bands, steps in (("poisson", 1, 1), ("poisson", 3, 3), ("random-allocation", 1, 6)):
        planned = stage(sampling, bands)
        assert StepNoise(planned, {"sum": Draw(planned.noise)}).steps == steps
        assert StepNoise(planned.charge, {"sum": Draw(planned.noise)}).steps == 1


def test_a_charge_pays_for_its_steps_and_no_other_noise():
    epochs, other = StepNoise.of_stage(stage("random-allocation")), StepNoise.of_stage(stage())
    with pytest.raises(PlanViolation, match="needs a run"):
        Charger(None, RandomStream())
    with Till.open(None, FixedPlan.at_its_cost(epochs.event * 2 + other.event, 1e-3)) as till:
        run = till.run("run")
        charger = Charger(run, RandomStream())
        for step in range(12):
            charger.next_step(epochs, 1.0)
            assert run.reserved == 1 + step // 6
            if step == 3:
                with pytest.raises(PlanViolation, match="of other noise"):
                    charger.next_step(other, 1.0)
        charger.next_step(other, 1.0)
        with pytest.raises(PlanViolation, match="0 more steps"):
            charger.next_step(other, 1.0)
        assert charger.reserved == 3


def test_a_forked_process_has_no_permit(monkeypatch):
    noise = StepNoise.of_event(Gaussian(2.0))
    with Till.open(None, FixedPlan.at_its_cost(noise.event * 3, 1e-3)) as till:
        charger = Charger(till.run("run"), RandomStream())
        permit = charger.next_step(noise, 1.0)
        monkeypatch.setattr(permits.os, "getpid", lambda: -1)
        for use in (
            lambda: permit.release(ZEROS),
            lambda: charger.next_step(noise, 1.0),
            lambda: charger.up_to(2, noise, 1.0, most=1),
        ):
            with pytest.raises(PlanViolation, match="forked process"):
                use()


def test_steps_that_are_left_out_are_charged_before_the_permit_of_a_later_one():
    noise = StepNoise.of_event(Gaussian(2.0))
    with Till.open(None, FixedPlan.at_its_cost(noise.event * 9, 1e-3)) as till:
        run = till.run("run")
        charger = Charger(run, RandomStream())
        charger.up_to(1, noise, 1.0, most=4)
        assert run.reserved == 1
        charger.up_to(5, noise, 1.0, most=4).release(ZEROS)  # the steps 2 to 4 are lost
        assert (charger.reserved, run.reserved) == (5, 5)
        charger.up_to(6, noise, 1.0, most=4)  # a lease of several steps
        assert run.reserved == 9
        charger.up_to(8, noise, 1.0, most=4)  # skips within what the lease has paid for
        assert (charger.reserved, run.reserved) == (8, 9)
        with pytest.raises(PlanViolation, match="more steps"):
            charger.up_to(12, noise, 1.0, most=4)


def test_a_process_without_the_ledger_gets_permits_after_the_first_has_decided():
    noise, decided = StepNoise.of_event(Gaussian(2.0)), iter([0, 1])
    charger = Charger(None, RandomStream(), lambda decide: next(decided))
    charger.next_step(noise, 1.0).release(ZEROS)

    def refusing(decide):
        raise PlanViolation("The first process refused.")

    charger._agree = refusing
    with pytest.raises(PlanViolation, match="first process"):
        charger.next_step(noise, 1.0)


def network(stream, sampling="poisson", bands=1, **options):
    plan = Recipe(60, 10, steps=12, sampling=sampling, bands=bands).with_noise(3.0, delta=1e-3)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    run = PrivateRun(
        plan, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().sum(1), **options
    )
    batches = run.batches(torch.ones(60, 3))
    run._stream = stream  # which batches are not drawn from
    return run, batches


ENGINES = {
    "float": {},
    "hardened": {"arithmetic": "hardened"},
    "adaptive": {"clipping": AdaptiveClip(1.0, batch_size=10, count_noise=5.0)},
    "bands": {"bands": 3},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_noise_is_drawn_after_a_reservation_has_failed(engine, monkeypatch):
    """For every n: what is drawn before the failure is drawn by paid steps, and nothing after it."""
    for reservations in range(4):
        with monkeypatch.context() as patch:
            stream = Noting()
            Broken(patch, reservations)
            run, batches = network(stream, **ENGINES[engine])
            completed = before = 0
            try:
                for batch in batches:
                    before = stream.draws
                    run.step(batch)
                    completed += 1
            except LedgerUnavailable:
                assert stream.draws == before
            assert completed < 12
            assert completed >= reservations
            assert (stream.draws > 0) == (completed > 0)


@pytest.mark.parametrize("algorithm", ["sgd1", "sgd2"])
def test_no_party_draws_noise_after_a_reservation_has_failed(algorithm, monkeypatch):
    plan, kind = study(algorithm), "token" if algorithm == "sgd1" else "sum"
    for reservations in range(2 if algorithm == "sgd1" else 4):
        with monkeypatch.context() as patch:
            stream = Noting()
            Broken(patch, reservations)
            party = party_of(plan, "ann", stream=stream)
            party.answer(hello(plan, "ann", bytes(32) if algorithm == "sgd1" else b""))
            party.prepare()
            assert stream.draws == 0
            for number in range(1, plan.updates + 1):
                before = stream.draws
                name = "ann" if algorithm == "sgd1" else "*"
                party.answer(Message(plan.digest(), kind, number, name, np.zeros(DIMENSION)).encode())
                if party.stopped:
                    break
            assert party.stopped == "The disk is full."
            assert stream.draws == before
            assert number > reservations


def test_a_secure_sum_draws_no_noise_after_a_reservation_has_failed(monkeypatch):
    plan, stream = study(aggregation=Aggregation("secure")), Noting()
    party = party_of(plan, "ann", stream=stream)
    party.answer(hello(plan, "ann"))
    session = party._answering.session
    before = stream.draws
    Broken(monkeypatch, 0)
    with pytest.raises(LedgerUnavailable):
        session._counts(Message(plan.digest(), "mask", 1, "*", np.zeros(DIMENSION)))
    assert stream.draws == before


def test_a_party_refuses_the_permit_of_another():
    one, other = (PartyPlan(study(), name) for name in ("ann", "bob"))
    stream = Noting()
    permit = paid(other.step_noise, 1.0, stream)
    with pytest.raises(PlanViolation, match="other noise"):
        sgd2.noisy_sum(one, holders()["ann"], np.zeros(DIMENSION), stream, permit)
    assert stream.draws == 0


def test_noise_that_is_drawn_before_the_charge_is_found(monkeypatch):
    """The broken twin: the permit is made first."""

    def early(self, noise, clip_norm, lease=1):
        permit = NoisePermit(noise, clip_norm, self._stream, 2, permits._KEY)
        permit.release(BoundedSum(np.zeros(8), clip_norm))
        self._run.next_step(noise.event)
        return permit

    monkeypatch.setattr(Charger, "next_step", early)
    stream = Noting()
    Broken(monkeypatch, 0)
    run, batches = network(stream)
    with pytest.raises(LedgerUnavailable):
        run.step(next(batches))
    assert stream.draws > 0
