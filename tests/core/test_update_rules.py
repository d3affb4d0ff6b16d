"""Optimizers on private gradients: against torch's own, and against the noise they are told of."""

import numpy as np
import pytest
import torch

from discreet import Budget, InvalidParameter
from discreet.core.descent import AdaGrad, Adam, AdamW, Momentum, Plain, descend
from discreet.core.randomness import RandomStream
from discreet.lecture.certified_descent import private_descent
from discreet.linear.losses import Logistic

STEP = 0.03
PAIRS = {
    "plain": (Plain(), lambda p: torch.optim.SGD(p, lr=STEP)),
    "momentum": (Momentum(0.8), lambda p: torch.optim.SGD(p, lr=STEP, momentum=0.8)),
    "adagrad": (AdaGrad(1e-10), lambda p: torch.optim.Adagrad(p, lr=STEP)),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, lr=STEP)),
    "adam, other decays": (Adam(0.5, 0.9, 1e-3), lambda p: torch.optim.Adam(p, STEP, (0.5, 0.9), 1e-3)),
    "adamw": (AdamW(Adam(), 0.1), lambda p: torch.optim.AdamW(p, lr=STEP, weight_decay=0.1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_same_path_as_torch(name):
    update, of_torch = PAIRS[name]
    rng = np.random.default_rng(1)
    gradients, start = rng.normal(size=(30, 4)), rng.normal(size=4)
    given = iter(gradients)
    path = descend(lambda theta: next(given), start, steps=30, step_size=STEP, update=update)
    parameter = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = of_torch([parameter])
    for t, gradient in enumerate(gradients, 1):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        np.testing.assert_allclose(path.iterates[t], parameter.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_optimizers_cost_nothing(name):
    X, budget = np.ones((50, 2)), Budget(1.0, 1e-3, neighbours="replace-one")

    def fit(update):
        stream = RandomStream(unsafe_seed=3)
        return private_descent(
            Logistic(), X, np.ones(50), budget, steps=5, step_size=0.1, update=update, stream=stream
        )

    with_it, without = fit(PAIRS[name][0]), fit(None)
    assert with_it.event == without.event
    assert with_it.guarantee == without.guarantee


def mean_denominator(update, noise_std, steps=4000):
    """The scale by which a constant gradient of 1 under noise is divided, late in the run."""
    rng = np.random.default_rng(5)
    theta = np.zeros(50)
    state = update.begin(theta)
    for _ in range(steps):
        before = theta
        theta, state = update.step(theta, 1 + noise_std * rng.normal(size=50), 1.0, state)
    late = before - theta
    return 1 / np.mean(late)


def test_adam_can_forget_the_noise():
    """The second moment of a gradient of 1 is 1 + 9 with noise; told of it, Adam divides by about 1 again."""
    decays = {"first_decay": 0.999, "second_decay": 0.9995}
    told = mean_denominator(Adam(**decays, noise_std=3.0, stabiliser=0.1), 3.0)
    untold = mean_denominator(Adam(**decays), 3.0)
    assert 0.8 < told < 1.25
    assert 2.8 < untold < 3.6


def test_adagrad_can_forget_the_noise():
    rng, told, untold = np.random.default_rng(6), AdaGrad(noise_std=3.0), AdaGrad()
    moved = {}
    for name, update in (("told", told), ("untold", untold)):
        theta, state = np.zeros(200), update.begin(np.zeros(200))
        for _ in range(1000):
            theta, state = update.step(theta, 1 + 3.0 * rng.normal(size=200), 1.0, state)
        moved[name] = -theta.mean()
    plain = AdaGrad()
    theta, state = np.zeros(1), plain.begin(np.zeros(1))
    for _ in range(1000):
        theta, state = plain.step(theta, np.ones(1), 1.0, state)
    assert moved["untold"] < 0.4 * -theta[0] < 0.6 * -theta[0] < moved["told"]


@pytest.mark.parametrize(
    "make",
    [
        lambda v: Momentum(v),
        lambda v: AdaGrad(stabiliser=v),
        lambda v: AdaGrad(noise_std=v),
        lambda v: Adam(first_decay=v),
        lambda v: Adam(second_decay=v),
        lambda v: Adam(stabiliser=v),
        lambda v: AdamW(weight_decay=v),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, True, "0.9", None])
def test_parameters_are_checked(make, value):
    with pytest.raises(InvalidParameter):
        make(value)
