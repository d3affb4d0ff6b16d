"""Accountants in other libraries' shapes, driven as those libraries drive them."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from discreet import (
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    PoissonSampled,
    RepeatAndSelect,
    TreeAggregation,
    TruncatedPoissonSampled,
    UnsupportedEvent,
    account,
)
from discreet.compat.dp_accounting import DpAccountant, event_of, read_event
from discreet.compat.opacus import OpacusAccountant, read_history

# Values of dp-accounting 0.6 (PLD, interval 1e-4) and Opacus 1.6 (PRV), computed once: upper bounds of theirs.
PLD_SGD, PRV_SGD = 0.9470, 0.9573  # noise 4, rate 0.01, 10 000 steps, delta 1e-5


class Optimizer:
    """What a hook is given by Opacus."""

    def __init__(self, noise_multiplier, accumulated_iterations=1):
        self.noise_multiplier, self.accumulated_iterations = noise_multiplier, accumulated_iterations


def test_an_opacus_run():
    accountant = OpacusAccountant()
    assert accountant.get_epsilon(delta=1e-5) == 0
    hook = accountant.get_optimizer_hook_fn(sample_rate=0.01, poisson_sampling=True)
    for _ in range(30):
        hook(Optimizer(4.0))
    for _ in range(20):
        hook(Optimizer(2.0, accumulated_iterations=2))
    assert len(accountant) == 50
    assert accountant.history == [(4.0, 0.01, 30), (2.0, 0.02, 20)]
    event = PoissonSampled(0.01, Gaussian(4.0)) * 30 + PoissonSampled(0.02, Gaussian(2.0)) * 20
    assert accountant.get_epsilon(delta=1e-5) == account(event).epsilon(1e-5)
    other = OpacusAccountant()
    other.load_state_dict(accountant.state_dict())
    assert other.history == accountant.history
    assert accountant.mechanism() == "discreet"


def test_a_history_of_opacus_costs_less_than_it_said():
    accountant = OpacusAccountant()
    accountant.load_state_dict({"history": [(4.0, 0.01, 10_000)], "mechanism": "prv"})
    lower, upper = accountant.epsilon_bounds(1e-5)
    assert lower <= 0.9468668 <= upper < PRV_SGD


@pytest.mark.parametrize(
    "state", [None, {}, {"history": 5}, {"history": [(1.0, 0.1)]}, {"history": [(-1.0, 0.1, 3)]}]
)
def test_bad_states_are_refused(state):
    accountant = OpacusAccountant()
    with pytest.raises(InvalidParameter):
        accountant.load_state_dict(state)
    with pytest.raises(InvalidParameter):
        accountant.step(noise_multiplier=float("nan"), sample_rate=0.1)
    assert accountant.history == []


@pytest.mark.parametrize("said", [False, None])
def test_batches_that_were_not_sampled_are_refused(said):
    """The broken twin accounted for shuffled batches as if every record had joined each of them by chance."""
    with pytest.raises(InvalidParameter, match="poisson_sampling"):
        OpacusAccountant().get_optimizer_hook_fn(sample_rate=0.01, poisson_sampling=said)

    def make_private(poisson_sampling):
        return OpacusAccountant().get_optimizer_hook_fn(sample_rate=0.01)

    with pytest.raises(InvalidParameter, match="poisson_sampling=False"):
        make_private(poisson_sampling=False)
    assert callable(make_private(poisson_sampling=True))


def test_without_noise_epsilon_is_infinite():
    accountant = OpacusAccountant()
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == float("inf")
    again = OpacusAccountant()
    again.load_state_dict(accountant.state_dict())
    assert again.get_epsilon(1e-5) == float("inf")
    with pytest.raises(InvalidParameter, match="epsilon is infinite"):
        read_history("[[0.0, 0.1, 3]]")


# The events of dp-accounting, by name and field.


@dataclass
class NoOpDpEvent: ...


@dataclass
class NonPrivateDpEvent: ...


@dataclass
class GaussianDpEvent:
    noise_multiplier: float


@dataclass
class LaplaceDpEvent:
    noise_multiplier: float


@dataclass
class EpsilonDeltaDpEvent:
    epsilon: float
    delta: float


@dataclass
class SelfComposedDpEvent:
    event: Any
    count: int


@dataclass
class ComposedDpEvent:
    events: list[Any] = field(default_factory=list)


@dataclass
class PoissonSampledDpEvent:
    sampling_probability: float
    event: Any


@dataclass
class SampledWithoutReplacementDpEvent:
    source_dataset_size: int
    sample_size: int
    event: Any


@dataclass
class DiscreteLaplaceDpEvent:
    noise_parameter: float
    sensitivity: int


@dataclass
class DiscreteGaussianDpEvent:
    sigma: float
    sensitivity: float = 1.0
    dimension: int | None = None


@dataclass
class RandomizedResponseDpEvent:
    noise_parameter: float
    num_buckets: int


@dataclass
class MixtureOfGaussiansDpEvent:
    standard_deviation: float
    sensitivities: list[float]
    sampling_probs: list[float]


@dataclass
class ZCDpEvent:
    rho: float
    xi: float = 0.0


def test_a_run_of_dp_accounting():
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0))
    accountant = DpAccountant()
    assert accountant.get_epsilon(1e-5) == 0
    accountant.compose(SelfComposedDpEvent(step, 5_000)).compose(step, 5_000).compose(NoOpDpEvent())
    lower, upper = accountant.epsilon_bounds(1e-5)
    assert lower <= 0.9468668 <= upper <= PLD_SGD * (1 + 1e-3)
    assert accountant.get_delta(upper) <= 1.01e-5


@pytest.mark.parametrize(
    ("theirs", "relation"),
    [
        (GaussianDpEvent(2.0), "ADD_OR_REMOVE_ONE"),
        (ComposedDpEvent([LaplaceDpEvent(3.0), EpsilonDeltaDpEvent(0.1, 1e-9)]), "ADD_OR_REMOVE_ONE"),
        (SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(2.0)), "REPLACE_ONE"),
        (DiscreteLaplaceDpEvent(0.5, 2), "ADD_OR_REMOVE_ONE"),
        (DiscreteGaussianDpEvent(3.0, 1, dimension=1), "ADD_OR_REMOVE_ONE"),
        (RandomizedResponseDpEvent(0.5, 4), "REPLACE_ONE"),
        (ZCDpEvent(0.1), "ADD_OR_REMOVE_ONE"),
        (MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 3.0], [0.9, 0.08, 0.02]), "ADD_OR_REMOVE_ONE"),
        (
            PoissonSampledDpEvent(0.1, ComposedDpEvent([GaussianDpEvent(2.0), GaussianDpEvent(3.0)])),
            "REPLACE_ONE",
        ),
    ],
)
def test_every_kind_is_read(theirs, relation):
    accountant = DpAccountant(relation)
    assert accountant.supports(theirs)
    once = accountant.compose(theirs).get_epsilon(1e-6)
    assert 0 < once < accountant.compose(theirs, 3).get_epsilon(1e-6) < float("inf")


def test_the_meaning_of_parameters():
    assert event_of(SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(2.0))).parts() == (
        (FixedSizeSampled(10, 1000, Gaussian(2.0)), 1),
    )
    ((response, _),) = event_of(RandomizedResponseDpEvent(0.5, 4)).parts()
    truth, lie = 0.5 + 0.5 / 4, 0.5 / 4  # with probability 1/2 the truth, or else one of four
    assert truth / lie == pytest.approx(2.718281828459045**response.epsilon, rel=1e-12)


def test_what_has_no_theorem_is_refused_and_changes_nothing():
    accountant = DpAccountant()
    for theirs in (
        ZCDpEvent(0.1, xi=0.2),
        DiscreteGaussianDpEvent(3.0),
        SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(2.0)),
        RandomizedResponseDpEvent(0.5, 4),
        GaussianDpEvent(-1.0),
    ):
        assert not accountant.supports(theirs)
        with pytest.raises(ValueError, match=r"has no event|replace-one|noise_multiplier"):
            accountant.compose(theirs)
    assert accountant.get_epsilon(1e-9) == 0
    with pytest.raises(UnsupportedEvent, match="NOBODY"):
        DpAccountant("NOBODY")


@pytest.mark.parametrize(
    "theirs",
    [
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        PoissonSampledDpEvent(0.5, GaussianDpEvent(0.0)),
        ComposedDpEvent([GaussianDpEvent(1.0), NonPrivateDpEvent()]),
    ],
)
def test_what_protects_nobody_costs_everything(theirs):
    accountant = DpAccountant()
    assert accountant.supports(theirs)
    accountant.compose(theirs, 2).compose(GaussianDpEvent(1.0))
    assert accountant.get_epsilon(1e-5) == float("inf")
    assert accountant.get_delta(3.0) == 1


def test_what_never_happens_costs_nothing():
    accountant = DpAccountant().compose(PoissonSampledDpEvent(0.0, GaussianDpEvent(0.0)))
    assert accountant.compose(SelfComposedDpEvent(GaussianDpEvent(1.0), 0)).get_epsilon(0) == 0
    assert accountant.get_delta(float("inf")) == 0


def test_a_special_record_counts_for_nothing():
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0))
    accountant = DpAccountant("REPLACE_SPECIAL").compose(step, 10_000)
    assert accountant.epsilon_bounds(1e-5) == DpAccountant().compose(step, 10_000).epsilon_bounds(1e-5)


SGD = (
    "SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01, "
    "event=GaussianDpEvent(noise_multiplier=4.0)), count=10000)"
)
NAMED = """{"module_name": "dp_accounting.dp_event", "class_name": "ComposedDpEvent", "events": [
    {"class_name": "GaussianDpEvent", "noise_multiplier": 2.0},
    {"class_name": "LaplaceDpEvent", "noise_multiplier": 3.0}]}"""


def test_logs_of_others_are_read():
    run = PoissonSampled(0.01, Gaussian(4.0)) * 10_000
    assert read_event(SGD) == read_event(f"dp_accounting.{SGD}") == run
    assert read_history('{"history": [[4.0, 0.01, 10000]], "mechanism": "prv"}') == run
    assert read_history("[[4.0, 0.01, 9000], [4.0, 0.01, 1000]]") == run
    assert read_event(NAMED) == Gaussian(2.0) + Laplace(3.0)
    cut = (
        "TruncatedSubsampledGaussianDpEvent(dataset_size=100, sampling_probability=0.1, "
        "truncated_batch_size=20, noise_multiplier=2.0)"
    )
    assert read_event(cut).parts() == ((TruncatedPoissonSampled(0.1, 20, 100, 2.0), 1),)
    for shape, ours in (("inf", None), ("1.0", 1.0)):
        best = f"RepeatAndSelectDpEvent(event={SGD}, mean=10.0, shape={shape})"
        assert read_event(best).parts() == ((RepeatAndSelect(run, 10.0, ours), 1),)
    tree = "SingleEpochTreeAggregationDpEvent(noise_multiplier=3.0, step_counts=[100, 1000])"
    assert read_event(tree).parts() == ((TreeAggregation(1000, 3.0), 1),)  # one tree for each record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "X(1",
        "print('hello')",
        "__import__('os').system('true')",
        "GaussianDpEvent(noise_multiplier=__import__('os'))",
        "GaussianDpEvent(noise_multiplier=float('nan'))",
        "GaussianDpEvent()",
        "{",
        '{"class_name": 5}',
        "[1, 2]",
        "(" * 5000,
    ],
)
def test_what_is_no_log_is_refused_and_never_run(text):
    with pytest.raises((InvalidParameter, UnsupportedEvent)):
        read_event(text)
    with pytest.raises(InvalidParameter):
        read_history(text)
