"""Searches, estimates and lower bounds may return anything: no certified upper bound falls below the truth."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from discreet import (
    Budget,
    BudgetExceeded,
    Certificate,
    DiscreetError,
    Gaussian,
    Laplace,
    Ledger,
    PoissonSampled,
    Recipe,
    account,
    calibrate,
)
from discreet.accounting import (
    calibration,
    certified_bounds,
    curve,
    discretisation,
    gaussian,
    grids,
    pair_ranges,
    search,
)
from discreet.accounting.certified_bounds import mixtures
from discreet.accounting.convolve_direct import Direct
from discreet.accounting.curve_views import CurveViews
from discreet.accounting.discretisation import CompositionBlock, Design, LossWindow, build
from discreet.accounting.dominating import Relation, Tolerances, dominating
from discreet.accounting.label_grids import LabelGrid
from discreet.accounting.lattice import mass_outside
from discreet.accounting.optimistic import delta_lower
from discreet.accounting.pairs import GaussianPair
from discreet.accounting.saddlepoint import SaddlepointEstimate, SaddlepointTarget
from discreet.accounting.truncated import truncated_costs
from discreet.accounting.truncation_search import Truncation
from discreet.certificate import second_opinion
from discreet.events import (
    BoundedRange,
    DiscreteLaplace,
    FixedSizeSampled,
    MixtureOfGaussians,
    RandomlyAllocated,
    SampledWithReplacement,
    TruncatedPoissonSampled,
    ZeroConcentratedDP,
)
from discreet.guarantee import Bounds
from discreet.ledger import FixedPlan, TruncatedRenyiFilter, filter_search

EVENTS = {
    "sampled": PoissonSampled(0.01, Gaussian(2.0)) * 500,
    "many": PoissonSampled(0.004, Gaussian(1.0)) * 300_000,
    "bounded": Laplace(3.0) * 20,
    "one": PoissonSampled(0.02, Gaussian(1.5)),
    "both": Gaussian(5.0) + PoissonSampled(0.05, Gaussian(2.0)) * 100,
}
DELTA, EPSILON = 1e-6, 1.0
TRUTH = {
    name: (account(event).epsilon_bounds(DELTA).lower, account(event).delta_bounds(EPSILON).lower)
    for name, event in EVENTS.items()
}
GARBAGE = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-300, 1e300, 3.7]
REFUSALS = (ArithmeticError, ValueError, LookupError, TypeError, DiscreetError)


def still_sound(name):
    """The upper bounds of an event, asked anew, are refused or not below what holds of it."""
    made = account(EVENTS[name])
    for ask, at, truth in ((made.epsilon, DELTA, TRUTH[name][0]), (made.delta, EPSILON, TRUTH[name][1])):
        try:
            found = ask(at)
        except REFUSALS:
            continue
        assert found >= truth * (1 - 1e-9), (name, at)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_an_aim_that_is_nowhere(monkeypatch, name, value):
    """Tilt, epsilon and delta of an estimate are garbage, one at a time and all together."""
    right = SaddlepointEstimate.target_at_delta
    for place in ("tilt", "epsilon", "log_delta", None):

        def target(estimate, *_, place=place):
            known = vars(right(estimate, math.log(DELTA)))
            return (
                SaddlepointTarget(**dict.fromkeys(known, value))
                if place is None
                else SaddlepointTarget(**known | {place: value})
            )

        monkeypatch.setattr(SaddlepointEstimate, "target_at_delta", target)
        monkeypatch.setattr(SaddlepointEstimate, "target_at_epsilon", target)
        still_sound(name)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_windows_floors_and_steps_that_fit_nothing(monkeypatch, name, value):
    monkeypatch.setattr(SaddlepointEstimate, "chernoff", lambda *_: ((value, -value), (value, value)))
    still_sound(name)
    monkeypatch.undo()
    monkeypatch.setattr(SaddlepointEstimate, "floors", lambda self, *_: [value] * len(self.parts))
    still_sound(name)
    monkeypatch.undo()
    monkeypatch.setattr(SaddlepointEstimate, "suit_step", lambda *_: value)
    still_sound(name)
    monkeypatch.undo()
    monkeypatch.setattr(grids, "grid_offset", lambda *_: value)
    still_sound(name)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_roots_and_lower_bounds_that_are_garbage(monkeypatch, name, value):
    for module, helper, twin in (
        (search, "crossing_point", lambda *_: value),
        (search, "proved_epsilon", lambda *_: value),
        (search, "epsilon_on", lambda *_: value),
        (search, "refuted_epsilon", lambda *_: value),
        (search, "delta_lower", lambda *_: (value, value)),
        (discretisation, "tangents", lambda pair, losses, accuracy: np.full(len(losses), value)),
        (
            discretisation,
            "coarse_tangents",
            lambda masses, step, factor, tilt, blocks: np.full(blocks + 1, value),
        ),
    ):
        monkeypatch.setattr(module, helper, twin)
        still_sound(name)
        monkeypatch.undo()


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_a_search_that_returns_garbage(monkeypatch, name, value):
    for method in ("epsilon", "delta", "estimate_epsilon", "estimate_delta", "first_step"):
        monkeypatch.setattr(search.Search, method, lambda *_: value)
        still_sound(name)
        monkeypatch.undo()
    monkeypatch.setattr(search.Search, "epsilon", lambda *_: value)
    monkeypatch.setattr(search.Search, "estimate_epsilon", lambda *_: value)
    still_sound(name)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("value", GARBAGE)
def test_a_search_of_the_curve_that_returns_garbage(monkeypatch, name, value):
    """Without points that were noted there is no upper bound but the largest loss."""
    for method in (
        "epsilon",
        "delta",
        "lower_epsilon",
        "lower_delta",
        "vanishes",
        "_delta_in",
        "_near_largest",
    ):
        monkeypatch.setattr(search.CurveSearch, method, lambda *_: value)
        still_sound(name)
        monkeypatch.undo()
    for searcher in (search.Search, search.OneStepSearch):
        for method in ("epsilon_bounds", "delta_bounds"):
            monkeypatch.setattr(searcher, method, lambda *_: Bounds(value, value))
            still_sound(name)
            monkeypatch.undo()


@pytest.mark.parametrize("name", EVENTS)
def test_a_direction_that_nobody_proved_has_no_upper_bound(monkeypatch, name):
    """A search that only claims that the other direction stays below, or that asks about one of them twice."""
    for searcher in (search.Search, search.OneStepSearch):
        monkeypatch.setattr(searcher, "stays_below", lambda *_: True)
    still_sound(name)
    if dominating(EVENTS[name], Relation("add-remove", 1)).symmetric:
        return
    monkeypatch.undo()
    right = search.CurveSearch._in_direction
    for turned in ("remove", "add"):
        monkeypatch.setattr(
            search.CurveSearch,
            "_in_direction",
            lambda self, _, quality, name=turned: right(self, name, quality),
        )
        still_sound(name)


def test_notes_of_a_proof_are_those_of_its_own_distributions():
    """What is noted of one direction is no bound on the other, and no search can note an epsilon below 0."""
    event = EVENTS["sampled"]
    proof = account(event)._proof()
    lattice = search.Search(proof.plds("remove", certified_bounds.ROUGH), "remove", certified_bounds.ROUGH)
    design, _ = lattice.design_at(DELTA, 1e-3)
    evidence = proof.on_grid("remove", certified_bounds.ROUGH, design, False)
    assert evidence.note(TRUTH["sampled"][0] * 1.01) <= DELTA
    largest = proof.epsilon(DELTA)
    assert largest >= proof.largest_loss("add")  # nothing else is known of the other direction
    for value in (-1.0, math.nan, math.inf, -math.inf):
        with suppress(*REFUSALS):
            evidence.note(value)
    assert proof.epsilon(DELTA) == largest
    assert proof.delta(0.0) == 1.0
    with pytest.raises(ValueError, match="moments"):
        account(event + ZeroConcentratedDP(0.1))._proof().plds("remove")


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("steps", [1, 40])
def test_outcomes_of_mixtures_that_are_garbage_are_refused(monkeypatch, value, steps):
    event = MixtureOfGaussians(2.0, (0.0, 1.0, 2.0), (0.9, 0.07, 0.03)) * steps
    truth = account(event).epsilon_bounds(DELTA).lower, account(event).delta_bounds(EPSILON).lower
    right = pair_ranges.MixtureRange.propose_outcomes
    for twin in (
        lambda self, losses: np.full(len(losses), value),
        lambda self, losses: right(self, losses) + 0.1,
        lambda self, losses: right(self, losses)[::-1],
    ):
        monkeypatch.setattr(pair_ranges.MixtureRange, "propose_outcomes", twin)
        for ask, at, least in (
            (account(event).epsilon, DELTA, truth[0]),
            (account(event).delta, EPSILON, truth[1]),
        ):
            with suppress(*REFUSALS):
                assert ask(at) >= least * (1 - 1e-9)
        monkeypatch.undo()


RANGED = {
    "GaussianRange": (PoissonSampled(0.02, Gaussian(1.5)) * 60, "add-remove"),
    "SampledRange": (PoissonSampled(0.02, Gaussian(1.5)) * 60, "add-remove"),
    "ReversedRange": (PoissonSampled(0.02, Gaussian(1.5)) * 60, "add-remove"),
    "LaplaceRange": (Laplace(3.0) * 20 + Gaussian(9.0), "add-remove"),
    "BoundedLossRange": (BoundedRange(0.3) * 12 + ZeroConcentratedDP(0.001), "add-remove"),
    "DiscreteRange": (DiscreteLaplace(4.0, 2) * 10 + ZeroConcentratedDP(0.001), "add-remove"),
    "MixtureRange": (PoissonSampled(0.02, Gaussian(1.5)) * 60, "replace-one"),
    "LabelledRange": (SampledWithReplacement(20, 1000, 2.0) * 30, "replace-one"),
    "HalvesRange": (FixedSizeSampled(20, 1000, Gaussian(2.0)), "replace-one"),
    "OppositeRange": (FixedSizeSampled(20, 1000, Gaussian(2.0)) * 30, "zero-out"),
}
ORDER, PLACE = 12.0, 0.4


def lower_bounds(event, neighbours):
    """Lower bounds of epsilon and delta."""
    made = account(event, neighbours)
    return made.epsilon_bounds(DELTA).lower, made.delta_bounds(0.3).lower


@pytest.mark.parametrize("name", RANGED)
@pytest.mark.parametrize("value", GARBAGE)
def test_ranges_of_pairs_that_are_garbage(monkeypatch, name, value):
    """Ranges and boundaries of a privacy loss steer the search; the limits of a loss are no part of them."""
    event, neighbours = RANGED[name]
    epsilon, delta = lower_bounds(event, neighbours)
    ranges = getattr(pair_ranges, name)
    boundaries = np.sort(np.append(np.linspace(-1.0, 1.0, 30), value))
    for method, twins in {
        "p_range": [lambda *_: (value, value), lambda *_: (-value, value)],
        "q_range": [lambda *_: (value, -value)],
        "outcome_range": [lambda *_: (-value, value), lambda *_: (value, value)],
        "nodes": [lambda *_: np.full(5, value), lambda *_: boundaries, lambda *_: np.array([value])],
        "atoms": [property(lambda _: (-value, value))],
        "common_pairs": [lambda self, _: [(self.pairs[0], value)], lambda *_: []],
    }.items():
        for twin in twins if method in dir(ranges) else []:
            monkeypatch.setattr(ranges, method, twin)
            made = account(event, neighbours)
            for ask, at, truth in ((made.epsilon, DELTA, epsilon), (made.delta, 0.3, delta)):
                try:
                    found = ask(at)
                except REFUSALS:
                    continue
                assert found >= truth * (1 - 1e-9), (method, at)
            monkeypatch.undo()


@pytest.mark.parametrize(
    "name", [name for name, (_, neighbours) in RANGED.items() if neighbours != "zero-out"]
)
def test_boundaries_that_are_garbage_lower_no_truncated_cost(monkeypatch, name):
    """Truncated divergences for any boundaries are upper bounds: compared with those of a fine grid."""
    event, neighbours = RANGED[name]
    event = next(part for part, _ in event.parts())
    right = truncated_costs(event, ORDER, PLACE, neighbours)
    for value in GARBAGE:
        boundaries = np.sort(np.append(np.linspace(-1.0, 1.0, 30), value))
        for twin in (np.full(5, value), boundaries, np.array([value]), np.linspace(0.39, 0.41, 10**5)):
            monkeypatch.setattr(getattr(pair_ranges, name), "nodes", lambda *_, twin=twin: twin)
            try:
                costs = truncated_costs(event, ORDER, PLACE, neighbours)
            except REFUSALS:
                continue
            finally:
                monkeypatch.undo()
            for direction, (divergence, mass) in costs.items():
                assert divergence >= right[direction].divergence * (
                    1 - 1e-4
                )  # those of a fine grid are no truth
                assert mass >= right[direction].mass * (1 - 1e-9)


@pytest.mark.parametrize("value", GARBAGE)
def test_roots_of_the_gaussian_curve_that_are_garbage(monkeypatch, value):
    """Both ends of an epsilon are checked against the curve, and so is a mu."""
    monkeypatch.setattr(gaussian, "root_of", lambda *_: value)
    for mu in (0.05, 1.0, 40.0):
        try:
            found = gaussian.gaussian_epsilon_bounds(DELTA, mu)
        except REFUSALS:
            continue
        assert gaussian.gaussian_delta_bounds(found.upper, mu).lower <= DELTA * (1 + 1e-9)
        assert gaussian.gaussian_delta_bounds(found.lower, mu).upper >= DELTA * (1 - 1e-9) or found.lower == 0
    try:
        mu = gaussian.gaussian_mu(EPSILON, DELTA)
    except REFUSALS:
        return
    assert gaussian.gaussian_delta_bounds(EPSILON, mu).lower <= DELTA * (1 + 1e-9)


@pytest.mark.parametrize("value", GARBAGE)
def test_pairs_of_data_sets_that_are_garbage_change_no_upper_bound(monkeypatch, value):
    """Bounds from below have pairs of their own."""
    for event, neighbours in (
        (SampledWithReplacement(20, 1000, 2.0) * 30, "replace-one"),
        (TruncatedPoissonSampled(0.01, 30, 2000, 1.2) * 30, "add-remove"),
        (RandomlyAllocated(10, Gaussian(0.05)) * 3, "add-remove"),
    ):
        right = account(event, neighbours).epsilon(DELTA), account(event, neighbours).delta(EPSILON)
        garbage = dominating(Gaussian(1.0), Relation(neighbours, 1))
        monkeypatch.setattr(curve, "attained", lambda *_, garbage=garbage: replace(garbage, mu=value))
        with suppress(*REFUSALS):
            made = account(event, neighbours)
            assert (made.epsilon(DELTA), made.delta(EPSILON)) == right
        monkeypatch.undo()


LABELS = {
    "none": lambda low, high: (np.zeros(0, int), np.zeros(0, int)),
    "one": lambda low, high: (np.zeros(1, int), np.zeros(1, int)),
    "too few": lambda low, high: (np.full(9, -8), np.arange(-4, 5)),
    "no top": lambda low, high: (np.full(42, 0), np.arange(-41, 1)),
    "gaps": lambda low, high: (np.full(41, 0), 3 * np.arange(-20, 21)),
    "two spacings": lambda low, high: (np.array([5, 0, 0, 0, 5]), np.array([-2, -1, 0, 7, 2])),
    "falling": lambda low, high: (np.full(41, 1), np.arange(20, -21, -1)),
    "twice": lambda low, high: (np.full(42, 1), np.repeat(np.arange(-10, 11), 2)),
    "far apart": lambda low, high: (np.full(2, 40), np.array([-1, 1])),
    "many": lambda low, high: (np.full(2, -40), np.array([-(2**60), 2**60])),
}
REACHES = [0, 1, -5, 3, 2000, 3.7, math.nan]


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    "event",
    [PoissonSampled(1e-3, Gaussian(0.8)) * 37 + Gaussian(4.0), PoissonSampled(0.01, Gaussian(0.3)) * 2],
    ids=["many", "few"],
)
def test_labels_that_are_garbage(monkeypatch, neighbours, event):
    """Sums in positive arithmetic are upper bounds for every centre, all labels and every rule which are kept."""
    plds = dominating(event, Relation(neighbours, 1)).plds_of("remove", Tolerances(1e-12, 1e-2))

    def curve_of_sums():
        return Direct(mixtures(plds), 1e-9, 1 / 16)

    asked = np.array([0.0, 0.3, 1.0, 3.0, 8.0])
    truth = [delta_lower(curve_of_sums(), epsilon)[0] for epsilon in asked]
    assert truth[2] > 1e-9
    twins = [("mean", property(lambda _, value=value: value, lambda *_: None)) for value in GARBAGE]
    twins += [("single", lambda _, *ends, labels=labels: labels(*ends)) for labels in LABELS.values()]
    twins += [("reach", lambda *_, reach=reach: lambda exponent: reach) for reach in REACHES]
    twins += [("widest", lambda *_, reach=reach: lambda exponent: reach) for reach in REACHES]
    answered = 0
    for name, twin in twins:
        monkeypatch.setattr(LabelGrid, name, twin, raising=False)
        with suppress(*REFUSALS), np.errstate(all="ignore"):
            made = curve_of_sums()
            assert all(made.delta_upper(a)[0] >= b * (1 - 1e-9) for a, b in zip(asked, truth, strict=True)), (
                name
            )
            answered += 1
        monkeypatch.undo()
    assert answered > 8


@pytest.mark.parametrize("vertices", [[3, 2, 1], [0, 0, 1], [0, 5, 3, 9], [0, 2**62], [-(2**62), 2**62]])
def test_points_that_are_no_grid_are_refused(vertices):
    pair = GaussianPair(1.0)
    with pytest.raises(FloatingPointError):
        discretisation.discretise(pair, pair, 0.0, 0.1, 0.0, np.array(vertices), -30.0)


@pytest.mark.parametrize(
    "blocks",
    [
        [CompositionBlock(3, 3, LossWindow((-9.0, 9.0), (1.0, 1.0)))],  # nine releases of ten
        [CompositionBlock(-1, -10, LossWindow((-9.0, 9.0), (1.0, 1.0)))],
        [
            CompositionBlock(0, 5, LossWindow((-9.0, 9.0), (1.0, 1.0))),
            CompositionBlock(10, 1, LossWindow((-9.0, 9.0), (1.0, 1.0))),
        ],
    ],
)
def test_blocks_that_leave_releases_out_are_refused(blocks):
    pair, window = GaussianPair(0.1), LossWindow((-9.0, 9.0), (1.0, 1.0))
    grid = [(0.0, np.arange(-100, 101))]
    with pytest.raises(ValueError, match="blocks"):
        build(
            [discretisation.LossDistribution(pair, pair, 10)],
            Design(0.0, 0.01, -30.0, grid, window, [blocks], 3),
        )
    whole = [CompositionBlock(10, 1, window)]
    for factor in (0, -3, 2):
        with pytest.raises(ValueError, match="blocks"):
            build(
                [discretisation.LossDistribution(pair, pair, 10)],
                Design(0.0, 0.01, -30.0, grid, window, [whole], factor),
            )


@pytest.mark.parametrize("slopes", [(-1.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, -math.inf)])
def test_exponents_that_prove_nothing(slopes):
    """A negative exponent would make Chernoff's bound as small as one likes."""
    pair = GaussianPair(1.0)
    pld = discretisation.discretise(pair, pair, 0.0, 0.1, 0.0, np.arange(-100, 101), -30.0)
    assert not mass_outside([(pld, 3)], (-5.0, 5.0), slopes) < 1


def test_a_delta_below_the_one_that_rounding_was_charged_for_is_not_claimed():
    pair = GaussianPair(0.1)
    pld = discretisation.discretise(pair, None, 0.0, 0.01, 0.0, np.arange(-200, 201), math.log(1e-3))
    assert pld.delta_upper(1.9)[0] >= 1e-3


def test_views_that_are_garbage_change_no_guarantee(monkeypatch):
    event = EVENTS["sampled"]
    before = account(event).guarantee(DELTA), account(event).delta_bounds(EPSILON)
    for name in [name for name in vars(CurveViews) if not name.startswith("__")]:
        if not getattr(getattr(CurveViews, name), "__isabstractmethod__", False) and name not in (
            "neighbours",
        ):
            monkeypatch.setattr(CurveViews, name, lambda *_, **__: -1.0)
    assert (account(event).guarantee(DELTA), account(event).delta_bounds(EPSILON)) == before


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.0])
def test_a_calibration_that_returns_too_little_noise_is_refused_by_the_ledger(monkeypatch, noise):
    budget = Budget(1.0, DELTA)
    monkeypatch.setattr(calibration._Calibration, "solve", lambda self: noise)
    event = PoissonSampled(0.01, Gaussian(calibrate(lambda z: Gaussian(z), budget))) * 500
    with pytest.raises(BudgetExceeded):
        Ledger.in_memory(FixedPlan(event, budget))


def test_the_hostile_check_itself_catches_a_bound_that_is_too_small(monkeypatch):
    """The broken twin: an upper bound that leaves out a part of the mass."""
    right = curve.PrivacyCurve.epsilon_bounds

    def less(self, delta, **words):
        found = right(self, delta, **words)
        return found._replace(upper=0.99 * found.lower)

    monkeypatch.setattr(curve.PrivacyCurve, "epsilon_bounds", less)
    with pytest.raises(AssertionError):
        still_sound("sampled")


@pytest.mark.parametrize("value", GARBAGE)
def test_a_truncation_that_is_garbage_is_refused_or_prices_in_full(monkeypatch, value):
    """A filter whose order, cut and exposure came from nowhere has room for no more than its budget."""
    event, budget = PoissonSampled(0.01, Gaussian(2.0)), Budget(1.0, DELTA)
    for place in ("order", "cut", "exposure", None):
        right = {"fits": 1.0, "order": 20.0, "cut": 1.0, "exposure": 1e-8}
        wrong = dict.fromkeys(right, value) if place is None else right | {place: value}
        monkeypatch.setattr(filter_search, "best_truncation", lambda *_, wrong=wrong: Truncation(**wrong))
        try:
            rule = TruncatedRenyiFilter.for_event(event, budget)
        except REFUSALS:
            continue
        room = rule.room({}, event)
        assert room == 0 or account(event * room).epsilon_bounds(DELTA).lower <= budget.epsilon
        assert rule.guarantee({}).epsilon.upper == budget.epsilon


@pytest.mark.parametrize("value", GARBAGE)
def test_a_second_opinion_that_is_garbage_lowers_no_guarantee(monkeypatch, value):
    """It can only make the verification of a certificate fail."""
    plan = Recipe(records=60_000, batch_size=600, epochs=1).calibrate(Budget(1.0, DELTA))
    with Ledger.in_memory(plan.rule) as ledger:
        ledger.run(plan.event, plan.digest()).reserve(plan.steps)
        certificate = Certificate.of(ledger, plan)
        monkeypatch.setattr(second_opinion, "renyi_epsilon", lambda *_: value)
        try:
            found = certificate.verify(ledger).guarantee
        except REFUSALS:
            return
        assert found == certificate.guarantee
