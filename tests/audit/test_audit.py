"""Subjects of many kinds, honest and broken, through ``audit``; and how often an honest one is accused."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

import discreet.audit as room
from discreet.accounting.gaussian import gaussian_mu
from discreet.audit import GradientCanaries, ModelCanaries, OneStep
from discreet.audit.bounds import Trials
from discreet.audit.claims import Claim
from discreet.certificate import Certificate
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, UnsupportedEvent
from discreet.events import Gaussian, Laplace, PoissonSampled, RandomlyAllocated
from discreet.guarantee import Bounds, Budget, Guarantee
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.gradient_sum import Clip
from discreet.ledger import FixedPlan, GaussianFilter, Ledger
from discreet.linear.losses import Logistic
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage
from discreet.pytorch import PrivateRun

DELTA, STEPS = 1e-5, 10


def audit(*subject_and_claim, **options):
    """With the same coins in every test run."""
    return room.audit(*subject_and_claim, stream=RandomStream(unsafe_seed=2), **options)


def gaussian_claim(epsilon):
    """Ten full-batch steps that cost epsilon."""
    return Gaussian(math.sqrt(STEPS) / gaussian_mu(epsilon, DELTA)) * STEPS


def core_loop(noise, steps, seed, rate=1.0):
    """The loop that anybody would write with the trusted core."""
    stream = RandomStream(unsafe_seed=seed)

    def train(gradients):
        clipped = clip_rows(gradients, 1.0)
        released = []
        for _ in range(steps):
            batch = clipped if rate == 1 else clipped[stream.uniform(len(clipped)) < rate]
            released.append(add_noise(BoundedSum(batch.sum(axis=0), 1.0), noise, stream))
        return np.array(released)

    return train


def foreign(noise_std, steps, seed, clip=True):
    """A stranger's DP-SGD in plain numpy."""
    rng = np.random.default_rng(seed)

    def train(gradients):
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients / np.maximum(1, norms) if clip else gradients).sum(axis=0)
        return total + noise_std * rng.normal(size=(steps, gradients.shape[1]))

    return train


def noise_of(event):
    return event.parts()[0][0].noise_multiplier


@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.7), (4.0, 0.9), (8.0, 0.9)])
def test_our_core_is_close_to_its_claim_and_below(epsilon, share):
    claim = gaussian_claim(epsilon)
    subject = core_loop(claim.parts()[0][0], STEPS, seed=1)
    result = audit(subject, claim, GradientCanaries(), delta=DELTA)
    assert share < result.tightness < 1
    assert 0 < result.classic < result.lower < result.ceiling
    assert not result.void
    assert result.runs == 10


def test_without_assumptions_the_bound_is_lower_but_not_idle():
    claim = gaussian_claim(4.0)
    subject = foreign(noise_of(claim), STEPS, seed=1)
    method = GradientCanaries(count=500, runs=8, independent=False)
    result = audit(subject, claim, method, delta=DELTA)
    assert 0.5 < result.tightness < 1
    assert "nothing is assumed" in result.assumptions


@pytest.mark.parametrize(
    "step",
    [PoissonSampled(0.2, Gaussian(1.0)), Laplace(4.0), RandomlyAllocated(4, Gaussian(2.0))],
    ids=lambda step: step.kind,
)
def test_other_steps_are_audited_through_their_own_curve(step):
    rng = np.random.default_rng(1)
    noise = step.of if hasattr(step, "of") else step
    law = (
        stats.norm(scale=noise.noise_multiplier)
        if isinstance(noise, Gaussian)
        else stats.laplace(scale=noise.scale)
    )

    def train(gradients):
        clipped, width = clip_rows(gradients, 1.0, "l2"), gradients.shape[1]
        if isinstance(step, RandomlyAllocated):
            places = rng.integers(0, 4, size=(6, len(clipped)))
            sums = [clipped[place == turn].sum(axis=0) for place in places for turn in range(4)]
        else:
            rate = getattr(step, "rate", 1.0)
            sums = [clipped[rng.random(len(clipped)) < rate].sum(axis=0) for _ in range(6)]
        return np.array(sums) + law.rvs((len(sums), width), random_state=rng)

    method = GradientCanaries(count=500, runs=4)
    result = audit(train, step * 6, method, delta=DELTA)
    assert 0.6 < result.tightness < 1


def test_the_final_sum_is_enough():
    claim = gaussian_claim(4.0)
    subject = foreign(noise_of(claim), STEPS, seed=4)
    method = GradientCanaries(count=500, runs=4)
    result = audit(lambda rows: subject(rows).sum(axis=0), claim, method, delta=DELTA)
    assert 0.8 < result.tightness < 1


def test_one_step_of_a_scalar_and_of_a_vector():
    rng = np.random.default_rng(5)
    shift = np.array([0.6, 0.0, -0.8])

    def scalar(world, draws):
        return 7.0 - world + rng.normal(size=draws)

    def vector(world, draws):
        return world * shift + rng.normal(size=(draws, 3))

    for release, options in ((scalar, {}), (vector, {}), (vector, {"direction": 10 * shift})):
        result = audit(release, Gaussian(1.0), OneStep(100_000, **options), delta=DELTA)
        assert 0.95 < result.tightness < 1


def test_a_score_of_the_users_own():
    """The leak is in the size of the noise: no projection sees it, its energy does."""
    rng = np.random.default_rng(6)

    def release(world, draws):
        return (1 + world) * rng.normal(size=(draws, 20))

    seen = audit(release, Gaussian(1.0), OneStep(5000, score=lambda rows: (rows**2).sum(axis=1)), delta=DELTA)
    assert (
        seen.tightness
        > 1
        > audit(release, Gaussian(1.0), OneStep(5000, direction=np.ones(20)), delta=DELTA).tightness
    )


def test_a_group_of_records_is_seen_better_and_the_bound_is_for_one():
    """Noise 10 hides one record in 2000 draws, and ten hardly; half of it is found."""
    rng, claim = np.random.default_rng(23), Gaussian(10.0)

    def release(noise, group):
        return lambda world, draws: world * group + noise * rng.normal(size=draws)

    one, ten = (audit(release(10.0, k), claim, OneStep(4000, group=k), delta=DELTA) for k in (1, 10))
    assert one.tightness < 0.8 < ten.tightness < 1
    assert ten.claimed == one.claimed == pytest.approx(Claim.of(claim, delta=DELTA).epsilon)
    assert 0 < ten.classic < ten.lower
    assert audit(release(5.0, 10), claim, OneStep(4000, group=10), delta=DELTA).tightness > 1.5
    twice = audit(release(10.0, 20), claim, OneStep(4000, group=10), delta=DELTA, neighbours="replace-one")
    assert 0.8 < twice.tightness < 1  # ten records that are exchanged move the sum by twenty


def test_private_descent_by_its_final_model():
    """The lecture's descent, from the last coefficients alone; canaries are the only records."""
    stream = RandomStream(unsafe_seed=7)
    stage = Stage("descent", "full-batch", 200, 200, STEPS, 1.0, noise_of(gaussian_claim(4.0)))
    plan = Plan((stage,), delta=DELTA)

    def train(X, y):
        model = private_descent(
            Logistic(), X, y > 0.5, plan, step_size=0.5, route=Clip(1.0), average="last", stream=stream
        )
        return model.value

    result = audit(train, plan, ModelCanaries(count=200, runs=8))
    assert 0.6 < result.tightness < 1
    assert not result.contradicts(plan.guarantee)


def test_a_private_run_of_torch():
    """A linear model whose loss is <w, x>: the gradient of a record is the record."""
    stage = Stage("descent", "poisson", 400, 200, 4, 1.0, 1.5)
    plan, seeds = Plan((stage,), delta=DELTA), itertools.count(1)

    class Dot(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = torch.nn.Linear(width, 1, bias=False)
            torch.nn.init.zeros_(self.layer.weight)

        def forward(self, x):
            return self.layer(x)[:, 0]

    def train(gradients):
        model = Dot(gradients.shape[1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = torch.utils.data.TensorDataset(torch.tensor(gradients, dtype=torch.float32))
        run = PrivateRun(
            plan, model, optimizer, lambda model, batch: model(batch[0]), unsafe_seed=next(seeds)
        )
        weights = [np.zeros(gradients.shape[1])]
        for batch in run.batches(data):
            run.step(batch)
            weights.append(model.layer.weight.detach().numpy()[0].copy())
        return -np.diff(weights, axis=0) * plan.divisor

    result = audit(train, plan, GradientCanaries(count=150, runs=4))
    assert 0.6 < result.tightness < 1


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("independent", [True, False])
def test_half_of_the_noise_is_found(epsilon, independent):
    claim = gaussian_claim(epsilon)
    count = 500 if independent or epsilon > 1 else 1000
    method = GradientCanaries(count=count, runs=5 if independent else 10, independent=independent)
    result = audit(foreign(noise_of(claim) / 2, STEPS, seed=10), claim, method, delta=DELTA)
    guarantee = Claim.of(claim, delta=DELTA).curve(0).guarantee(DELTA)
    assert result.contradicts(guarantee)
    assert "CONTRADICTS" in str(result)


def test_a_missing_clip_is_found_at_once():
    claim = gaussian_claim(4.0)
    result = audit(
        foreign(noise_of(claim), STEPS, seed=11, clip=False), claim, GradientCanaries(100, 2), delta=DELTA
    )
    assert result.tightness > 3


def test_sensitivity_of_add_remove_sold_for_replace_one_is_found():
    """Noise for one clip norm; a replaced record moves the sum by two."""
    claim = gaussian_claim(4.0)
    subject = foreign(noise_of(claim), STEPS, seed=12)
    sold = Gaussian(noise_of(claim) * 2) * STEPS  # what replace-one neighbours need for epsilon 4
    method = GradientCanaries(count=1000, runs=5)
    found = audit(subject, sold, method, delta=DELTA, neighbours="replace-one")
    assert found.tightness > 1.5
    honest = audit(
        foreign(noise_of(sold), STEPS, seed=12), sold, method, delta=DELTA, neighbours="replace-one"
    )
    assert 0.8 < honest.tightness < 1


def test_a_label_flip_game_for_replace_one_models():
    rng = np.random.default_rng(13)
    noise = noise_of(gaussian_claim(4.0))

    def train(X, y):
        clipped = clip_rows(X * np.where(y > 0.5, 1.0, -1.0)[:, None], 1.0)
        return clipped.sum(axis=0) * STEPS + math.sqrt(STEPS) * noise * rng.normal(size=X.shape[1])

    result = audit(
        train, Gaussian(noise) * STEPS, ModelCanaries(500, 4), delta=DELTA, neighbours="replace-one"
    )
    assert 0.8 < result.tightness < 1


def test_a_release_that_is_not_a_number_tells_all():
    def release(world, draws):
        return np.where(world, np.nan, np.zeros(draws))

    assert audit(release, Gaussian(1.0), OneStep(2000), delta=DELTA).tightness > 1


def accusations(method, subject, claim, count, **options):
    """How many of ``count`` honest runs refute the claim itself."""
    claim = Claim.of(claim, delta=DELTA, **options)
    stream = RandomStream(unsafe_seed=14)
    found = (method.play(subject, claim, 0.95, stream, lambda done, total: None) for _ in range(count))
    return sum(evidence.refutes(claim.lines(0), 0.05) for evidence in found)


NULL = 300
MOST = int(stats.binom.isf(1e-6, NULL, 0.05))
"""A method with the stated error of 5 % exceeds it with probability 1e-6; the seeds are fixed."""


@pytest.mark.parametrize(
    ("method", "neighbours", "least"),
    [
        (GradientCanaries(count=80, runs=1), "add-remove", 3),
        (GradientCanaries(count=200, runs=1), "replace-one", 3),
        (GradientCanaries(count=100, runs=2, independent=False), "add-remove", 0),
    ],
)
def test_honest_canaries_are_accused_no_more_often_than_stated(method, neighbours, least):
    claim = gaussian_claim(2.0)
    found = accusations(method, foreign(noise_of(claim), STEPS, seed=15), claim, NULL, neighbours=neighbours)
    assert least <= found <= MOST


def test_honest_releases_and_models_are_accused_no_more_often_than_stated():
    rng = np.random.default_rng(16)
    found = accusations(
        OneStep(2000), lambda world, draws: world + rng.normal(size=draws), Gaussian(1.0), NULL
    )
    assert 4 <= found <= MOST

    def train(X, y):
        return clip_rows(X, 1.0).sum(axis=0) + rng.normal(size=X.shape[1])

    assert 3 <= accusations(ModelCanaries(count=100, runs=1), train, Gaussian(1.0), NULL) <= MOST


def test_the_count_catches_an_audit_that_is_repeated_until_it_accuses():
    """The broken twin: the most telling of ten audits, reported as if it were the only one."""
    rng = np.random.default_rng(17)
    claim = Claim.of(Gaussian(1.0), delta=DELTA)

    def audits():
        for _ in range(10):
            yield Trials.count(1 + rng.normal(size=500), rng.normal(size=500), 0.5)

    accused = sum(any(trials.refutes(claim.lines(0), 0.05) for trials in audits()) for _ in range(60))
    assert accused > stats.binom.isf(1e-6, 60, 0.05)


def test_few_guesses_are_void():
    claim = gaussian_claim(8.0)
    method = GradientCanaries(count=100, runs=1, independent=False, guesses=10)
    result = audit(foreign(noise_of(claim), STEPS, seed=18), claim, method, delta=DELTA)
    assert result.void
    assert "VOID" in str(result)
    assert result.lower <= result.ceiling < result.claimed


def test_the_result_speaks_for_its_own_relation_and_any_delta():
    result = audit(foreign(noise_of(gaussian_claim(4.0)), STEPS, 21), gaussian_claim(4.0), delta=DELTA)
    assert result.lower_at(DELTA) == result.lower
    assert result.lower_at(1e-8) > result.lower
    assert result.contradicts(Guarantee(Bounds(2.0, 2.0), DELTA))
    assert not result.contradicts(Guarantee(Bounds(4.0, 4.0), DELTA))
    for other in ({"neighbours": "replace-one"}, {"group_size": 2}):
        with pytest.raises(InvalidParameter, match="audit that claim"):
            result.contradicts(Guarantee(Bounds(2.0, 2.0), DELTA, **other))
    data = json.loads(json.dumps(result.to_dict()))
    assert data["lower"] == result.lower
    assert data["evidence"]["members"] > 0
    assert data["void"] is False


def test_nothing_seen_is_a_bound_of_zero():
    result = audit(lambda world, draws: np.zeros(draws), Gaussian(1.0), OneStep(1000), delta=DELTA)
    assert result.lower == result.lower_at(1e-6) == 0.0


def test_certificates_are_claims():
    plan = Plan((Stage("descent", "full-batch", 100, 100, 2, 1.0, 9.0),), delta=DELTA)
    budget = Budget(1.0, DELTA)
    with Ledger.in_memory(FixedPlan(plan.event, budget)) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(2)
        assert Claim.of(Certificate.of(ledger, plan)) == Claim.of(plan)
    adaptive = Plan.adaptive("fit", GaussianFilter(budget))
    with Ledger.in_memory(GaussianFilter(budget)) as ledger:
        ledger.run(Gaussian(30.0), adaptive.digest()).reserve(1)
        claim = Claim.of(Certificate.of(ledger, adaptive))
    assert isinstance(claim.event, Gaussian)  # whatever was chosen, together it is one Gaussian release
    assert claim.epsilon == pytest.approx(1.0, rel=1e-4)  # a part of delta is held back


def test_progress_is_shown_on_standard_error(capsys):
    claim = gaussian_claim(4.0)
    audit(foreign(noise_of(claim), STEPS, 20), claim, GradientCanaries(50, 3), delta=DELTA, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: GradientCanaries(count=math.nan), "count"),
        (lambda: GradientCanaries(runs=0), "runs"),
        (lambda: GradientCanaries(clip_norm=math.nan), "clip_norm"),
        (lambda: GradientCanaries(length=0.5), "length"),
        (lambda: GradientCanaries(unit=0.0), "unit"),
        (lambda: GradientCanaries(unit=math.nan), "unit"),
        (lambda: GradientCanaries(guesses=0), "guesses"),
        (lambda: OneStep(draws=10), "draws"),
        (lambda: OneStep(at_once=0), "at_once"),
        (lambda: OneStep(group=math.nan), "group"),
        (lambda: audit(None, Gaussian(1.0), OneStep(), delta=DELTA), "train"),
        (lambda: audit(print, Gaussian(1.0), "fast", delta=DELTA), "method"),
        (lambda: audit(print, Gaussian(1.0), OneStep(), math.nan, delta=DELTA), "confidence"),
        (lambda: audit(print, Gaussian(1.0), OneStep()), "delta"),
        (lambda: audit(lambda rows: rows, Gaussian(1.0), GradientCanaries(), delta=DELTA), "train"),
        (lambda: audit(lambda world, draws: 1.0, Gaussian(1.0), OneStep(), delta=DELTA), "release"),
        (
            lambda: audit(
                lambda world, draws: np.zeros((draws, 2)),
                Gaussian(1.0),
                OneStep(direction=[0.0, 0.0]),
                delta=DELTA,
            ),
            "direction",
        ),
        (
            lambda: audit(
                lambda world, draws: np.zeros(draws),
                Gaussian(1.0),
                OneStep(score=lambda rows: rows),
                delta=DELTA,
            ),
            "score",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(call, name):
    with pytest.raises(InvalidParameter) as refusal:
        call()
    assert refusal.value.name == name


def test_stages_of_several_kinds_are_refused():
    with pytest.raises(UnsupportedEvent, match="each stage by itself"):
        audit(print, Gaussian(1.0) + Gaussian(2.0), delta=DELTA)
