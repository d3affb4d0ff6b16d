"""The private mean: the theorems, the errors measured, the sensitivities replayed, and what is never told."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from discreet.accounting.curve import account
from discreet.accounting.gaussian import gaussian_mu
from discreet.core.noise import add_noise
from discreet.core.randomness import RandomStream
from discreet.errors import InvalidParameter, PlanViolation
from discreet.events import Composition, Gaussian, Laplace
from discreet.guarantee import Budget
from discreet.statistics.mean import (
    Ball,
    FixedClip,
    Interval,
    SecondMoment,
    private_mean,
    recentring,
)
from discreet.statistics.mean.error_bounds import best_clip_norm, deviation, error_bound, lecture_clip_norm
from discreet.trusted import queries, session

RELATIONS = ("add-remove", "replace-one")
PURE, APPROXIMATE = Budget(1.0, 0.0, "replace-one"), Budget(1.0, 1e-5, "replace-one")


def seeded(seed=1):
    return RandomStream(unsafe_seed=seed, threads=1)


# Numbers with E x^2 <= s^2, replace-one, Laplace noise of scale 2 C / epsilon on the sum. Closed forms:
# lecture's clip s sqrt(n epsilon) / 2 with s^2/n + (9/4) s^2/(n epsilon), best clip s sqrt(n epsilon) / 128^(1/4)
# with s^2/n + sqrt(2) s^2/(n epsilon).
NUMBERS = {
    (100, 1.0, 1.0): (5.0, 0.0325, 2.973017788, 0.02414213562),
    (1000, 0.5, 2.0): (22.36067977, 0.022, 13.29573974, 0.0153137085),
    (10_000, 0.1, 1.0): (15.8113883, 0.00235, 9.401507733, 0.001514213562),
}

# Vectors with E |x|^2 <= 1, replace-one, Gaussian noise of deviation 2 C c / epsilon on the sum: best clip and
# s^2/n + c sqrt(d) s^2/(n epsilon), for three choices of c: the lecture's ln(2/delta), the classic, the least.
VECTORS = [
    (10_000, 1.0, 10, math.log(2e5), 5.690717559, 0.003959899085),
    (10_000, 1.0, 10, math.sqrt(2 * math.log(1.25e5)), 9.032684557, 0.001632061945),
    (10_000, 1.0, 10, 3.7306316348, 10.29351786, 0.001279729308),
    (10_000, 0.5, 100, 4.02880924, 3.938688694, 0.008157618481),
]


@pytest.mark.parametrize(("case", "expected"), NUMBERS.items())
def test_the_bound_for_numbers(case, expected):
    (n, epsilon, s), (lecture, lecture_square, best, best_square) = case, expected
    event = Laplace(2 / epsilon)
    assert lecture_clip_norm(s, n, epsilon) == pytest.approx(lecture, rel=1e-9)
    assert error_bound(event, lecture, s, n) ** 2 == pytest.approx(lecture_square, rel=1e-8)
    assert best_clip_norm(event, s, n) == pytest.approx(best, rel=1e-9)
    assert error_bound(event, best, s, n) ** 2 == pytest.approx(best_square, rel=1e-8)


@pytest.mark.parametrize("case", VECTORS)
def test_the_bound_for_vectors(case):
    n, epsilon, d, c, best, square = case
    event = Gaussian(2 * c / epsilon)
    assert best_clip_norm(event, 1.0, n, d) == pytest.approx(best, rel=1e-8)
    assert error_bound(event, best, 1.0, n, d) ** 2 == pytest.approx(square, rel=1e-8)


@pytest.mark.parametrize(("event", "dimension"), [(Gaussian(3.0), 1), (Gaussian(3.0), 50), (Laplace(2.0), 7)])
def test_the_best_clip_is_the_best(event, dimension):
    def squared_log(log_clip):
        return math.log(error_bound(event, math.exp(log_clip), 3.0, 5000, dimension))

    found = minimize_scalar(squared_log, bounds=(0, 10), method="bounded", options={"xatol": 1e-9})
    assert best_clip_norm(event, 3.0, 5000, dimension) == pytest.approx(math.exp(found.x), rel=1e-4)


@pytest.mark.parametrize(("order", "d"), [(2, 1), (2, 6), (1, 1), (1, 6)])
def test_the_bias_of_clipping_is_bounded_and_the_constant_is_sharp(order, d):
    # What clipping cuts off one record is at most factor * |x|^2 / (4 C), so its mean is too.
    rng, clip, factor = np.random.default_rng(0), 1.7, 1 if order == 2 else math.sqrt(d)
    x = rng.standard_normal((20_000, d)) * 10 ** rng.uniform(-2, 3, (20_000, 1))
    x[:100] = 2 * clip / d ** (1 / order)  # all coordinates equal, norm 2 C: the worst case
    kept = x * np.minimum(1, clip / np.linalg.norm(x, order, axis=1))[:, None]
    cut, limit = np.linalg.norm(x - kept, axis=1), factor * np.sum(x**2, axis=1) / (4 * clip)
    assert np.all(cut <= limit * (1 + 1e-12))
    assert np.max(cut / limit) == pytest.approx(1, rel=1e-12)


def squares(draw, mean, budget, known, runs, seed=3, **options):
    """Squared errors of independent runs, and the last estimate."""
    rng, stream = np.random.default_rng(seed), seeded(seed)
    found = []
    for _ in range(runs):
        estimate = private_mean(draw(rng), budget, known, stream=stream, **options)
        found.append(np.sum((estimate.value - mean) ** 2))
    return np.array(found), estimate


def score(found, expected):
    """Standard errors between measured and expected mean squared error. Beyond 5 with probability 6e-7."""
    return (found.mean() - expected) / (found.std() / len(found) ** 0.5)


@pytest.mark.parametrize(
    ("n", "epsilon", "p", "exact"),
    [(100, 1.0, 0.3, 0.0023), (1000, 0.1, 0.5, 0.00045), (1000, 1.0, 0.2, 0.000162)],
)
def test_bits(n, epsilon, p, exact):
    budget = Budget(epsilon, 0.0, "replace-one")
    found, estimate = squares(lambda rng: rng.random(n) < p, p, budget, Interval(0, 1), 300)
    assert exact == pytest.approx(p * (1 - p) / n + 2 / (n * epsilon) ** 2)
    assert abs(score(found, exact)) < 5
    assert estimate.predicted_error**2 == pytest.approx(1 / (4 * n) + 2 / (n * epsilon) ** 2)
    # Broken twin: at a tenth of the budget the noise has ten times the scale.
    found, _ = squares(
        lambda rng: rng.random(n) < p, p, Budget(epsilon / 10, 0.0, "replace-one"), Interval(0, 1), 1500
    )
    assert score(found, exact) > 5


@pytest.mark.parametrize("clip", [5.0, 2.973017788])
def test_the_adversarial_law(clip):
    # x = 2 C with probability s^2 / (4 C^2), else 0. Closed form of the error, 0.024975 for the lecture's clip.
    n, p = 100, 1 / (4 * clip**2)
    exact = clip**2 * p * (1 - p) / n + (clip * p) ** 2 + 8 * clip**2 / n**2
    known = FixedClip(clip, root_mean_square=1.0)
    found, estimate = squares(lambda rng: 2 * clip * (rng.random(n) < p), 2 * clip * p, PURE, known, 800)
    assert abs(score(found, exact)) < 5
    assert exact < estimate.predicted_error**2
    assert exact == pytest.approx(0.024975) or clip != 5.0
    assert estimate.predicted_error**2 == pytest.approx(0.0325) or clip != 5.0
    # Broken twin: the bound without the bias of clipping does not hold for this law.
    without = estimate.predicted_error**2 - 1 / (16 * clip**2)
    assert clip != 2.973017788 or score(found, without) > -5


LAWS = {
    "normal": (lambda rng, shape: rng.standard_normal(shape), 0.0),
    "skewed": (lambda rng, shape: rng.exponential(size=shape) / 2**0.5, 0.5**0.5),
    "heavy": (lambda rng, shape: rng.standard_t(3, shape) / 3**0.5, 0.0),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("dimension", "delta"), [(1, 0.0), (1, 1e-5), (5, 0.0), (10, 1e-5)])
def test_second_moments_keep_their_promise(law, relation, dimension, delta):
    draw, mean = LAWS[law]
    shape = (400, dimension) if dimension > 1 else 400
    options = {"records": 400} if relation == "add-remove" else {}
    known = SecondMoment(dimension**0.5)
    budget = Budget(0.5, delta, relation)
    found, estimate = squares(lambda rng: draw(rng, shape), mean, budget, known, 40, **options)
    assert score(found, estimate.predicted_error**2) < 5
    assert estimate.valid_for == "every distribution with this root mean square"


def test_the_best_clip_and_its_bound_come_with_the_estimate():
    for (n, epsilon, s), (lecture, lecture_square, best, best_square) in NUMBERS.items():
        budget, zeros = Budget(epsilon, 0.0, "replace-one"), np.zeros(n)
        estimate = private_mean(zeros, budget, SecondMoment(s))
        assert estimate.clip_norm == pytest.approx(best, rel=1e-8)
        assert estimate.predicted_error**2 == pytest.approx(best_square, rel=1e-8)
        estimate = private_mean(zeros, budget, FixedClip(lecture, root_mean_square=s))
        assert (estimate.clip_norm, estimate.event) == (lecture, estimate.event)
        assert estimate.predicted_error**2 == pytest.approx(lecture_square, rel=1e-8)
    for n, epsilon, d, delta, best, square in (
        (10_000, 1.0, 10, 1e-5, 10.29351786, 0.001279729308),
        (10_000, 0.5, 100, 1e-6, 3.938688694, 0.008157618481),
    ):
        budget = Budget(epsilon, delta, "replace-one")
        estimate = private_mean(np.zeros((n, d)), budget, SecondMoment(1.0), arithmetic="float")
        assert estimate.clip_norm == pytest.approx(best, rel=1e-8)
        assert estimate.predicted_error**2 == pytest.approx(square, rel=1e-8)


def test_without_a_second_moment_the_prediction_is_for_the_clipped_records():
    # Everything beyond the clip: the mean of the clipped records is exactly the clip.
    found, estimate = squares(lambda rng: np.full(400, 9.0), 2.0, APPROXIMATE, FixedClip(2.0), 200)
    assert estimate.valid_for == "the mean of the clipped records"
    assert score(found, 2 * (2 * 2.0 / 400) ** 2) == pytest.approx(0, abs=5)
    assert estimate.predicted_error**2 == pytest.approx(2 * (2 * 2.0 / 400) ** 2 + 4 / 400, rel=1e-9)


def loss(dimension, n, runs, known, budget, seed=4, mean=None, draw=None, **options):
    """Error of the private mean over that of the plain mean, and over the predicted one."""
    rng, stream = np.random.default_rng(seed), seeded(seed)
    ours = plain = predicted = 0.0
    for _ in range(runs):
        center = rng.standard_normal(dimension)
        center *= 10 / np.linalg.norm(center)
        x = center + (rng.standard_normal((n, dimension)) if draw is None else draw(rng, (n, dimension)))
        estimate = private_mean(x, budget, known, stream=stream, **options)
        ours += np.sum((estimate.value - center) ** 2)
        plain += np.sum((x.mean(axis=0) - center) ** 2)
        predicted += estimate.predicted_error**2
    return (ours / plain) ** 0.5, (ours / predicted) ** 0.5


BALL = Budget(1.0, 1e-5)  # add-remove, the setting of the benchmark


@pytest.mark.parametrize(
    ("dimension", "n", "radius", "runs", "limit"),
    [
        (20, 1000, 50.0, 50, 1.25),
        (20, 10_000, 50.0, 12, 1.06),
        (1, 1000, 50.0, 50, 1.2),
        (20, 1000, 5e3, 20, 1.4),
        (3, 1000, 1e6, 20, 1.3),
    ],
)
def test_a_ball_costs_little_wherever_the_records_are(dimension, n, radius, runs, limit):
    # The ratio of the goals (1.25 and 1.05) was measured by benchmarks/mean.py with more runs; these are seeded.
    ratio, kept = loss(dimension, n, runs, Ball(radius), BALL, records=n)
    assert ratio < limit
    assert kept < 1
    # Broken twin: without recentring.
    ratio, _ = loss(dimension, n, 5, FixedClip(radius), BALL, records=n)
    assert ratio > 1.5


def test_a_ball_under_pure_privacy():
    ratio, kept = loss(1, 1000, 40, Ball(1000.0), Budget(1.0, 0.0), records=1000)
    assert ratio < 1.25
    assert kept < 1
    ratio, kept = loss(5, 3000, 15, Ball(1000.0), Budget(1.0, 0.0), records=3000)
    assert ratio < 1.3
    assert kept < 1


def test_a_ball_keeps_its_prediction_on_heavy_tails_and_is_fair_to_skewed_data():
    _, kept = loss(
        2, 1000, 60, Ball(1e3), BALL, records=1000, draw=lambda rng, shape: rng.standard_t(3, shape)
    )
    assert kept < 1
    ratio, _ = loss(
        2, 1000, 12, Ball(1e3), BALL, records=1000, draw=lambda rng, shape: rng.exponential(size=shape) - 1
    )
    assert ratio < 2


def test_where_noise_drowns_everything_a_ball_makes_one_release():
    estimate = private_mean(np.zeros((5, 20)), Budget(0.1, 1e-5), Ball(50.0), records=200)
    assert (len(estimate.event.parts()), estimate.clip_norm) == (1, pytest.approx(50.0))
    assert estimate.valid_for == "every distribution in the ball"


KNOWN = [Interval(-1, 3), Ball(50.0, center=1.0), SecondMoment(2.0), FixedClip(1.5, center=-1.0)]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: type(known).__name__)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_the_cost_is_certified_and_the_budget_is_used(known, relation, delta, arithmetic):
    for d, group_size, also in itertools.product((1, 20), (1, 3), ((), ("count", "variance"))):
        budget = Budget(0.8, delta, relation, group_size)
        options = {"records": 5000} if relation == "add-remove" else {}
        estimate = private_mean(
            np.ones((5000, d)), budget, known, also=also, arithmetic=arithmetic, **options
        )
        assert estimate.guarantee.within(budget)
        assert estimate.guarantee.epsilon.upper > 0.8 * (1 - 1e-4)
        assert estimate.arithmetic == arithmetic
        epsilon = account(estimate.event, relation, group_size).epsilon(estimate.guarantee.delta)
        assert epsilon <= estimate.guarantee.epsilon.upper
        parts = estimate.event.parts()
        if isinstance(parts[0][0], Gaussian):  # oracle: mu^2 adds up
            units = group_size * (2 if relation == "replace-one" else 1)
            mu = units * math.sqrt(sum(count / part.noise_multiplier**2 for part, count in parts))
            assert mu == pytest.approx(gaussian_mu(0.8, delta), rel=1e-4)
        else:  # oracle: epsilon adds up
            units = group_size * (2 if relation == "replace-one" else 1)
            assert units * sum(count / part.scale for part, count in parts) == pytest.approx(0.8)


def test_laplace_noise_where_it_is_less():
    for d, delta in itertools.product((1, 2, 5, 10, 30), (0.0, 1e-5)):
        x = np.zeros((2000, d))
        kinds = {
            type(known): isinstance(
                private_mean(x, Budget(1.0, delta), known, records=2000).event.parts()[0][0], Laplace
            )
            for known in KNOWN
        }
        assert kinds[Ball] == (delta == 0)
        assert kinds[FixedClip] == (delta == 0 or d == 1)
        # Oracle: variance of the noise times the square of the clip, which is sqrt(d) larger in the l1 norm.
        less = delta == 0 or 2 * d < 3.7306316348**2
        assert kinds[Interval] == kinds[SecondMoment] == less


def test_add_remove_needs_half_the_noise():
    one, two = (
        private_mean(np.zeros((500, 8)), Budget(1.0, 1e-5, relation), FixedClip(1.0), records=500)
        for relation in RELATIONS
    )
    assert 2 * deviation(one.event.parts()[0][0]) == pytest.approx(deviation(two.event.parts()[0][0]))


class Tap:
    """Stands in for add_noise: notes each sum, and repeats given answers where there are some."""

    def __init__(self, answers=()):
        self.sums, self.answers, self.given = [], [], list(answers)

    def __call__(self, total, event, stream):
        answer = self.given[len(self.sums)] if self.given else add_noise(total, event, stream)
        self.sums.append((total, event))
        self.answers.append(answer)
        return answer


def public(estimate):
    """Everything in an estimate, as text."""
    return repr({field.name: getattr(estimate, field.name) for field in dataclasses.fields(estimate)})


def leaks(monkeypatch, one, other, **call):
    """Replay: what ``other`` shows beyond its sensitivity when every noisy answer is that for ``one``.

    With equal answers everything else must be equal: the events, the clip norms, the result. Each sum may
    differ by what one record may add, or twice that where a record is replaced. And what was released must be
    what was charged.
    """
    taps = [Tap()]
    monkeypatch.setattr(session, "add_noise", taps[0])
    first = private_mean(one, **call)
    taps.append(Tap(taps[0].answers))
    monkeypatch.setattr(session, "add_noise", taps[1])
    second = private_mean(other, **call)
    found = [] if public(first) == public(second) else ["the result"]
    if first.event != Composition(tuple((event, 1) for _, event in taps[0].sums)):
        found.append("an event")
    if len(taps[0].sums) != len(taps[1].sums):
        return [*found, "the number of releases"]
    units = 2 if call["budget"].neighbours == "replace-one" else 1
    for (a, event), (b, other_event) in zip(taps[0].sums, taps[1].sums, strict=True):
        if (a.clip_norm, a.norm, a.grid, event) != (b.clip_norm, b.norm, b.grid, other_event):
            found.append("a parameter")
        step = 1.0 if a.grid is None else a.grid
        moved = np.linalg.norm((a.value - b.value) * step, 2 if a.norm == "l2" else 1)
        rounding = 1e-12 * (units + np.max(np.abs(a.value * step))) if a.grid is None else 1e-12 * a.clip_norm
        if not moved <= units * a.clip_norm + rounding:
            found.append("a sum")
    return found


WILD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e200, 1e-320, 0.0, -0.0, 1e16]


def wild(rng, shape):
    """Numbers of any size, one in five special."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 9, shape)
    return np.where(rng.random(shape) < 0.2, rng.choice(WILD, shape), values)


def neighbours(rng, relation, d):
    """A pair of neighbouring data sets: tame ones with a wild record, or wild altogether."""
    shape = (int(rng.integers(1, 40)), d) if d else (int(rng.integers(1, 40)),)
    one = wild(rng, shape) if rng.random() < 0.3 else rng.standard_normal(shape) + 2
    if relation == "add-remove":
        return one, np.delete(one, rng.integers(len(one)), axis=0)
    other = one.copy()
    other[rng.integers(len(one))] = wild(rng, shape[1:])
    return one, other


def calls(rng, relation, n):
    """One call of each kind, its budget large enough for recentring."""
    delta = float(rng.choice([0.0, 1e-7]))
    for known in KNOWN:
        options = {"arithmetic": "float"} | ({"records": 1000} if relation == "add-remove" else {})
        epsilon = 20.0 if relation == "add-remove" else 20.0 + 1000 / n
        if rng.random() < 0.3:
            options["arithmetic"] = "hardened"
            epsilon = min(epsilon, 25.0)
        if rng.random() < 0.5:
            options["also"] = ("variance", "count")
        yield {"budget": Budget(epsilon, delta, relation), "known": known, "stream": seeded(5), **options}


@pytest.mark.parametrize("relation", RELATIONS)
def test_neighbours_differ_by_the_sensitivity_and_by_nothing_else(monkeypatch, relation):
    rng, kinds = np.random.default_rng(6), set()
    for _ in range(25):
        pair = neighbours(rng, relation, int(rng.choice([0, 1, 3])))
        for call in calls(rng, relation, len(pair[0])):
            assert leaks(monkeypatch, *pair, **call) == []
            kinds.add((type(call["known"]), call["arithmetic"], call["budget"].delta))
    assert len(kinds) == 16


def unclipped(rows, clip_norm, norm):
    return np.nan_to_num(rows, posinf=0, neginf=0)


BROKEN = {
    "no clip": (queries, "clip_rows", unclipped),
    "a clip that lets NaN pass": (
        queries,
        "clip_rows",
        lambda rows, clip_norm, norm: np.nan_to_num(
            rows * np.fmin(1, clip_norm / np.linalg.norm(rows, axis=1, keepdims=True)), posinf=0, neginf=0
        ),
    ),
}


class Cheaper(recentring.Recentring):
    """Charges for one sum and makes many."""

    @property
    def events(self):
        return (self.release.noise,)


def test_a_strategy_cannot_release_more_than_it_charged(monkeypatch):
    monkeypatch.setattr(recentring, "Recentring", Cheaper)
    with pytest.raises(PlanViolation, match="no further release"):
        private_mean(np.linspace(0, 1, 1000), Budget(8.0, 1e-7, "replace-one"), Ball(100.0), stream=seeded())


@pytest.mark.parametrize("fault", BROKEN)
def test_the_replay_catches(monkeypatch, fault):
    monkeypatch.setattr(*BROKEN[fault])
    x = np.vstack([np.random.default_rng(0).standard_normal((50, 3)), [[math.nan, 1e9, -1e9]]])
    x = np.vstack([x, [[1e4, 0.0, 0.0]]])
    budget, found = Budget(8.0, 1e-7), set()
    for row, known in itertools.product((50, 51), KNOWN):
        pair = (x, np.delete(x, row, axis=0))
        with np.errstate(all="ignore"):
            call = {
                "budget": budget,
                "known": known,
                "records": 1000,
                "stream": seeded(),
                "arithmetic": "float",
            }
            found |= set(leaks(monkeypatch, *pair, **call))  # hardened sums would refuse such rows themselves
    assert found


def test_a_thousand_neighbours_raise_and_warn_nothing():
    # Warnings are errors here, so the test fails on either.
    rng = np.random.default_rng(7)
    kinds = [
        (Ball(50.0, center=1.0), 25),
        (Interval(-1, 3), 160),
        (SecondMoment(2.0), 160),
        (FixedClip(1.5), 155),
    ]
    for known, pairs in kinds:
        for _ in range(pairs):
            relation, d = str(rng.choice(RELATIONS)), int(rng.choice([0, 1, 4]))
            options = {"records": 1000} if relation == "add-remove" else {}
            for x in neighbours(rng, relation, d):
                budget = Budget(8.0, float(rng.choice([0.0, 1e-9])), relation)
                estimate = private_mean(x, budget, known, also="variance", **options)
                assert isinstance(estimate.value, np.ndarray if d else float)
                assert np.shape(estimate.value) == ((d,) if d else ())
                assert np.all(np.isfinite(estimate.value))
                assert estimate.variance >= 0


@pytest.mark.parametrize(
    "known", [Interval(-1, 3), SecondMoment(2.0, center=1.0), FixedClip(1.5, center=1.0)]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_as_the_center(known, bad):
    clean = np.random.default_rng(0).standard_normal((50, 3))
    dirty = clean.copy()
    clean[7], dirty[7, 1] = 1.0, bad
    values = [private_mean(x, APPROXIMATE, known, stream=seeded()).value for x in (clean, dirty)]
    assert np.array_equal(*values)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: type(known).__name__)
@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_rows_at_all(known, arithmetic, shape):
    budget = Budget(1.0, 1e-6)
    options = {"records": 1000, "arithmetic": arithmetic, "also": ("count", "variance")}
    estimate = private_mean(np.empty(shape), budget, known, **options)
    assert np.shape(estimate.value) == shape[1:]
    # The count has noise of deviation at most 4.22 / sqrt(0.1); false-alarm rate 1e-9.
    assert abs(estimate.count) < 6.2 * 4.23 / 0.1


def test_the_number_of_records_is_declared():
    x = np.ones(30)
    with pytest.raises(
        InvalidParameter, match=r"^records=None: must be declared: under add-remove neighbours"
    ):
        private_mean(x, Budget(1.0, 1e-6), Interval(0, 1))
    estimate = private_mean(x, Budget(1.0, 1e-6), FixedClip(2.0), records=60, stream=seeded())
    same = private_mean(x, Budget(1.0, 1e-6), FixedClip(2.0), records=30, stream=seeded())
    assert (estimate.records, same.records) == (60, 30)
    assert estimate.sum == pytest.approx(same.sum)
    assert estimate.value == pytest.approx(same.value / 2)
    assert private_mean(x, PURE, Interval(0, 1), records=30).records == 30
    by_bounds, by_name = (private_mean(x, PURE, known, stream=seeded()) for known in ((0, 1), Interval(0, 1)))
    assert by_bounds.value == by_name.value
    with pytest.raises(InvalidParameter, match=r"^known=7: must be .*bounds \(lower, upper\)"):
        private_mean(x, PURE, 7)
    for wrong in (29, 31):
        with pytest.raises(InvalidParameter, match=r"^records=.* is not the number of rows"):
            private_mean(x, PURE, Interval(0, 1), records=wrong)
    with pytest.raises(InvalidParameter, match=r"^x='no rows'"):
        private_mean([], PURE, Interval(0, 1))


@pytest.mark.parametrize("share", [0.8, 0.95, 1.05, 1.2])
def test_a_declared_number_that_is_a_little_wrong_does_little_harm(share):
    x = np.random.default_rng(0).normal([30.0, 0.0, -40.0], size=(int(5000 * share), 3))
    value = private_mean(x, Budget(1.0, 1e-6), Ball(1000.0), records=5000, stream=seeded()).value
    assert value == pytest.approx(x.mean(axis=0), abs=0.3)
    # A single release around a center far away is off by the whole share of the mean.
    value = private_mean(x, Budget(1.0, 1e-6), FixedClip(60.0), records=5000, stream=seeded()).value
    assert np.linalg.norm(value - x.mean(axis=0)) > 1


@pytest.mark.parametrize(
    "known", [Ball(100.0), Interval(-10, 10), FixedClip(20.0), SecondMoment(5.0)], ids=repr
)
@pytest.mark.parametrize("arithmetic", ["float", "hardened"])
def test_by_products(known, arithmetic):
    x = np.random.default_rng(0).standard_normal((20_000, 3)) * [1.0, 2.0, 0.5] + 1.5
    budget, options = Budget(2.0, 1e-6), {"records": 20_500, "arithmetic": arithmetic, "stream": seeded()}
    estimate = private_mean(x, budget, known, also=("count", "variance"), **options)
    assert estimate.count == pytest.approx(20_000, abs=100)  # 8 standard deviations
    assert estimate.variance == pytest.approx(5.25, rel=0.15)
    plain = private_mean(x, budget, known, **options)
    assert (plain.count, plain.variance) == (None, None)
    assert plain.predicted_error < estimate.predicted_error or isinstance(known, Ball)
    assert estimate.sum == pytest.approx(estimate.value * 20_500)


def test_the_count_is_free_where_it_is_public():
    estimate = private_mean(np.zeros(500), PURE, Interval(0, 1), also="count")
    assert estimate.count == 500
    assert estimate.event == private_mean(np.zeros(500), PURE, Interval(0, 1)).event


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: type(known).__name__)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_hardened_means_do_not_depend_on_the_order(known, delta):
    rng, budget = np.random.default_rng(0), Budget(5.0, delta)
    x = rng.standard_normal((4000, 3)) * 10.0 ** rng.uniform(-9, 0, (4000, 3))
    results = {"hardened": set(), "float": set()}
    for arithmetic, values in results.items():
        for _ in range(5):
            call = {"records": 4000, "stream": seeded(), "arithmetic": arithmetic}
            values.add(private_mean(rng.permutation(x), budget, known, **call).value.tobytes())
    assert len(results["hardened"]) == 1
    assert len(results["float"]) > 1 or isinstance(known, Ball)  # the broken twin


def test_hardened_and_float_means_agree():
    x = np.random.default_rng(0).standard_normal((3000, 4)) + 5
    for known in (Ball(100.0), FixedClip(20.0)):
        estimates = [
            private_mean(x, Budget(100.0 if a == "float" else 25.0, 1e-6, "replace-one"), known, arithmetic=a)
            for a in ("float", "hardened")
        ]
        for one in estimates:
            assert one.value == pytest.approx(x.mean(axis=0), abs=0.1)


def bits_below_all_others(marked, **settings):
    """How often the sum of a mark that one record has, or none, shows a bit that no number near a half has."""
    x, budget = np.zeros(16), Budget(8.0, 1e-6)
    x[0] = 0.7 * marked
    stream = seeded()
    options = {"records": 16, "stream": stream, **settings}
    sums = [private_mean(x, budget, FixedClip(1.0), **options).sum for _ in range(200)]
    scaled = np.ldexp(sums, 54)
    return int(np.sum(scaled != np.rint(scaled)))


def test_low_bits_tell_nothing_by_default():
    assert bits_below_all_others(False, arithmetic="float") > 50  # the broken twin
    assert bits_below_all_others(True, arithmetic="float") == 0
    assert bits_below_all_others(False) == bits_below_all_others(True) == 0


def test_hardened_noise_is_charged_for_what_it_differs_from_continuous_noise():
    budget = Budget(25.0, 1e-6)
    estimate = private_mean(np.zeros((9, 3)), budget, FixedClip(1.0), records=100, arithmetic="hardened")
    assert estimate.guarantee.epsilon.upper > account(estimate.event).epsilon(1e-6)
    with pytest.raises(InvalidParameter, match=r"^arithmetic='hardened': cannot be certified"):
        private_mean(np.zeros((9, 3)), Budget(40.0, 1e-6), FixedClip(1.0), records=100, arithmetic="hardened")


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.float32, np.longdouble, ">f4"])
def test_any_type_of_numbers(dtype):
    x = (np.arange(3000) % 2).astype(dtype)
    expected = private_mean(np.arange(3000) % 2.0, PURE, Interval(0, 1), stream=seeded()).value
    for given in (x, x.tolist(), np.stack([x, x], axis=1)[:, 0]):
        assert private_mean(given, PURE, Interval(0, 1), stream=seeded()).value == pytest.approx(expected)


def test_long_data_is_added_in_parts():
    x = np.random.default_rng(0).random((70_000, 2))
    estimate = private_mean(x, Budget(1e3, 1e-9, "replace-one"), Interval(0, 1))
    assert estimate.value == pytest.approx(x.mean(axis=0), abs=1e-5)
    assert private_mean(np.asfortranarray(x), Budget(1e3, 1e-9, "replace-one"), Interval(0, 1)).value == (
        pytest.approx(x.mean(axis=0), abs=1e-5)
    )


def test_a_center_for_each_coordinate():
    x = np.full((2000, 2), [1000.0, -5.0])
    for known in (
        FixedClip(1.0, center=(1000.0, -5.0)),
        SecondMoment(0.1, center=[1000.0, -5.0]),
        Ball(10.0, center=np.array([1000.0, -4.0])),
    ):
        value = private_mean(x, Budget(1.0, 1e-6), known, records=2000).value
        assert value == pytest.approx([1000.0, -5.0], abs=1.0)
    with pytest.raises(InvalidParameter, match=r"^center=.*2 coordinates"):
        private_mean(x, Budget(1.0, 1e-6), FixedClip(1.0, center=(1.0, 2.0, 3.0)), records=2000)


def test_seeds_are_stamped():
    x = np.zeros(50)
    assert private_mean(x, PURE, Interval(0, 1)).trusted
    assert not private_mean(x, PURE, Interval(0, 1), stream=seeded()).trusted
    assert private_mean(x, PURE, Interval(0, 1)).value != private_mean(x, PURE, Interval(0, 1)).value


NOT_NUMBERS = [math.nan, math.inf, True, "1", None, 1j]
NOT_SIZES = [*NOT_NUMBERS, 0.0, -1.0, 1e60, [1.0]]


@pytest.mark.parametrize("bad", NOT_SIZES)
def test_bad_sizes(bad):
    for name, make in {
        "radius": Ball,
        "clip_norm": FixedClip,
        "root_mean_square": SecondMoment,
    }.items():
        with pytest.raises(InvalidParameter, match=f"^{name}="):
            make(bad)
    if bad is not None:
        with pytest.raises(InvalidParameter, match=r"^root_mean_square="):
            FixedClip(1.0, root_mean_square=bad)
    with pytest.raises(InvalidParameter, match=r"^clip_norm="):
        error_bound(Laplace(1.0), bad, 1.0, 100)
    for use in (lambda s: best_clip_norm(Laplace(1.0), s, 100), lambda s: lecture_clip_norm(s, 100, 1.0)):
        with pytest.raises(InvalidParameter, match=r"^root_mean_square="):
            use(bad)


@pytest.mark.parametrize("bad", [*NOT_NUMBERS, 1e60])
def test_bad_points(bad):
    for make in (Ball, FixedClip, SecondMoment):
        with pytest.raises(InvalidParameter, match=r"^center="):
            make(1.0, center=bad)
        with pytest.raises(InvalidParameter, match=r"^center\[1\]="):
            make(1.0, center=(0.0, bad))
    with pytest.raises(InvalidParameter, match=r"^lower="):
        Interval(bad, 1)
    with pytest.raises(InvalidParameter, match=r"^upper="):
        Interval(0, bad)


@pytest.mark.parametrize("ends", [(0, 0), (1, 0), (0, 1e-60), (1e40, 1e40)])
def test_bad_intervals(ends):
    with pytest.raises(InvalidParameter, match=r"^upper"):
        Interval(*ends)


@pytest.mark.parametrize("bad", [*NOT_NUMBERS, 0, -3, 2.5, 10**13])
def test_bad_numbers_of_records(bad):
    with pytest.raises(InvalidParameter, match=r"^records="):
        private_mean(np.zeros(5), Budget(1.0, 1e-6), Interval(0, 1), records=bad)
    if bad != 10**13:
        with pytest.raises(InvalidParameter, match=r"^records="):
            error_bound(Laplace(1.0), 1.0, 1.0, bad)
        with pytest.raises(InvalidParameter, match=r"^dimension="):
            error_bound(Laplace(1.0), 1.0, 1.0, 100, dimension=bad)


@pytest.mark.parametrize("bad", [None, 1.0, "Ball", Ball])
def test_bad_objects(bad):
    x, budget = np.zeros(5), PURE
    with pytest.raises(InvalidParameter, match=r"^budget="):
        private_mean(x, bad, Interval(0, 1))
    with pytest.raises(InvalidParameter, match=r"^known="):
        private_mean(x, budget, bad)
    with pytest.raises(InvalidParameter, match=r"^event="):
        error_bound(bad, 1.0, 1.0, 100)
    with pytest.raises(InvalidParameter, match=r"^arithmetic="):
        private_mean(x, budget, Interval(0, 1), arithmetic=bad)
    for name in ("median", 1.0, "counts"):
        with pytest.raises(InvalidParameter, match=r"^also="):
            private_mean(x, budget, Interval(0, 1), also=[name])
    if bad is not None:
        with pytest.raises(InvalidParameter, match=r"^stream="):
            private_mean(x, budget, Interval(0, 1), stream=bad)


@pytest.mark.parametrize(
    "bad",
    [
        3.0,
        "secret",
        np.array(["secret", "text"]),
        None,
        np.zeros((2, 2, 2)),
        np.zeros((3, 0)),
        np.array([1j]),
    ],
    ids=repr,
)
def test_bad_data_is_refused_by_its_type_and_not_shown(bad):
    with pytest.raises(InvalidParameter, match=r"^x") as caught:
        private_mean(bad, PURE, Interval(0, 1))
    assert "secret" not in str(caught.value)
    assert "31337" not in str(caught.value)


def test_a_delta_that_allows_to_publish_a_record_is_refused():
    with pytest.raises(InvalidParameter, match=r"^delta=0.01: .* below 0.01\. .*a whole record"):
        private_mean(np.zeros(100), Budget(1.0, 0.01, "replace-one"), Interval(0, 1))
