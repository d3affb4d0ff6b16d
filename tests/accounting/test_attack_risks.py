"""Risks by name: bounds against attacks that are carried out, closed forms, and calibration."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import discreet as dp
from discreet.accounting.attack_risks import RISKS, Risk, gaussian_dp, percent
from discreet.errors import InvalidParameter

NOISE = dp.Gaussian(1.3)


@pytest.mark.parametrize("kind", RISKS.values())
@pytest.mark.parametrize("baseline", [1e-6, 1 / 3650, 0.03, 0.5, 0.99])
def test_success_is_the_power_of_the_gaussian_test(kind, baseline):
    exact = norm.cdf(norm.ppf(baseline) + 1 / 1.3)
    bound = kind(baseline).assess(dp.account(NOISE))
    assert bound.success.lower <= exact * (1 + 1e-9)
    assert exact <= bound.success.upper * (1 + 1e-12)
    assert bound.success.upper <= exact * (1 + 1e-6)


@pytest.mark.parametrize("values", [2, 5, 50])
def test_no_reconstruction_of_a_secret_value_beats_the_bound(values):
    """The attacker knows all but one record, a unit vector along one of ``values`` axes, and guesses by likelihood.

    100 000 trials; the standard error is at most .0016, so that five of them fail once in 3 million runs.
    """
    rng = np.random.default_rng(values)
    secrets = rng.integers(values, size=100_000)
    released = rng.normal(0, 1.3, (100_000, values))
    released[np.arange(100_000), secrets] += 1
    success = np.mean(released.argmax(axis=1) == secrets)
    bound = dp.Reconstruction(1 / values).assess(dp.account(NOISE)).success.upper
    assert success <= bound + 5 * math.sqrt(0.25 / 100_000)
    # A broken twin: half of the claimed noise is found out.
    released = rng.normal(0, 0.3, (100_000, values))
    released[np.arange(100_000), secrets] += 1
    assert np.mean(released.argmax(axis=1) == secrets) > bound + 5 * math.sqrt(0.25 / 100_000)


def test_attribute_inference_of_randomised_response_reaches_the_bound_of_its_events():
    event = dp.RandomisedResponse(epsilon=1.0, categories=2)
    truthful = math.e / (1 + math.e)
    bound = dp.AttributeInference(0.5).assess(dp.account(event, "replace-one"))
    assert truthful <= bound.success.upper <= 1 - 0.5 / math.e + 1e-6


def test_calibration_to_a_risk_stays_within_it_and_close_to_it():
    def family(noise):
        return dp.PoissonSampled(0.01, dp.Gaussian(noise)) * 1000

    limit = dp.Reconstruction(baseline=1 / 3650, at_most=2 / 3650)
    noise = dp.calibrate(family, risk=limit)
    assert limit.assess(dp.account(family(noise))).acceptable is True
    assert limit.assess(dp.account(family(0.99 * noise))).acceptable is False


@pytest.mark.parametrize(
    ("risk", "name"),
    [(dp.Reconstruction(0.1), "risk.at_most"), ("reconstruction", "risk"), (object(), "risk")],
)
def test_calibration_refuses_what_is_no_limit(risk, name):
    with pytest.raises(InvalidParameter) as error:
        dp.calibrate(dp.Gaussian, risk=risk)
    assert error.value.name == name


def test_calibration_wants_one_limit():
    with pytest.raises(InvalidParameter, match="exactly one of the four"):
        dp.calibrate(dp.Gaussian, dp.Budget(1.0, 1e-6), risk=dp.Membership(0.01, 0.02))


@pytest.mark.parametrize("value", [math.nan, 0.0, 1.0, -0.1, 2, math.inf, True, "1/2", None])
def test_baselines_are_probabilities(value):
    with pytest.raises(InvalidParameter) as error:
        dp.Reconstruction(value)
    assert error.value.name == "baseline"


@pytest.mark.parametrize("limit", [math.nan, 0.1, 0.05, 1.0, "x"])
def test_limits_exceed_the_baseline(limit):
    with pytest.raises(InvalidParameter) as error:
        dp.Membership(0.1, limit)
    assert error.value.name == "at_most"


@pytest.mark.parametrize("what", ["a\nb", "x" * 101, 3, b"diagnosis"])
def test_words_are_one_line(what):
    with pytest.raises(InvalidParameter) as error:
        dp.AttributeInference(0.1, what=what)
    assert error.value.name == "what"


def test_a_risk_without_a_kind_is_refused():
    with pytest.raises(InvalidParameter, match="one of its kinds"):
        Risk(0.1)


def test_sentences_round_against_the_reader():
    for kind in RISKS.values():
        text = kind(1 / 3650, what="the secret").sentence(0.0123401)
        assert "0.0273%" in text
        assert "1.24%" in text
        assert "the secret" in text
    assert percent(0.1) == "10%"
    assert percent(0.9999999) == "100%"


@pytest.mark.parametrize(
    "event",
    [
        dp.Gaussian(1.0),
        dp.PoissonSampled(0.02, dp.Gaussian(1.1)) * 500,
        dp.Laplace(2.0),
        dp.Laplace(10.0) * 20 + dp.Gaussian(5.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("slack", [1e-8, 1e-4])
def test_the_gaussian_summary_bounds_the_power_at_every_rate(event, slack):
    curve = dp.account(event)
    found = gaussian_dp(curve, slack)
    for rate in np.concatenate([10.0 ** np.arange(-9, 0), np.linspace(0.01, 0.99, 25)]):
        allowed = norm.cdf(norm.ppf(rate) + found.mu) + slack
        assert curve.power_bounds(float(rate)).lower <= allowed * (1 + 1e-9)
    assert f"{found}".startswith(f"{found.mu:.2}"[:3])


def test_the_gaussian_summary_of_gaussian_noise_is_its_own():
    found = gaussian_dp(dp.account(dp.Gaussian(4.0)))
    assert 0.25 <= found.mu <= 0.251
    assert found.regret < 1e-3


def test_the_gaussian_summary_refuses_what_it_cannot_resolve():
    with pytest.raises(InvalidParameter):
        gaussian_dp(dp.account(dp.ApproximateDP(1.0, 1e-3)), slack=1e-6)
    with pytest.raises(InvalidParameter):
        gaussian_dp(dp.account(dp.Gaussian(1.0)), slack=math.nan)
