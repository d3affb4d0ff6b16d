# %% [markdown]
# # The lecture companion
# Every algorithm and theorem of the notes: its import, one line that runs, its figure, and the corrections. The page
# `docs/lecture.md` has the proofs.

# %%
import math

import numpy as np

import discreet as dp
from discreet.lecture.figures import FIGURES

rng = np.random.default_rng(0)
budget = dp.Budget(epsilon=1.0, delta=1e-5, neighbours="replace-one")
x = np.clip(rng.normal(size=(2000, 3)), -2, 2) / 4
y = x[:, 0] - x[:, 1] > 0

# %% [markdown]
# **Clipping.** Erratum: lecture 4 prints a minimum of two vectors. The definition is x min(1, C / |x|).

# %%
from discreet.core import clip_rows

print(np.linalg.norm(clip_rows(4 * x, 1.0), axis=1).max().round(6))

# %% [markdown]
# **Private mean.** Erratum: the lecture's clip norm is within 9/4 : √2 of the best one.

# %%
FIGURES["mean-clip"]()

# %% [markdown]
# **Gaussian mechanism.** Erratum: the classic constant is proved for epsilon below 1 only.

# %%
from discreet.accounting import analytic_gaussian_noise, classic_gaussian_noise

print(classic_gaussian_noise(0.9, 1e-5), analytic_gaussian_noise(0.9, 1e-5))

# %% [markdown]
# **Laplace mechanism, privacy profile.** Erratum: the tail condition is sufficient, not necessary.

# %%
print(dp.account(dp.Laplace(scale=1.0)).delta(epsilon=0.5))

# %% [markdown]
# **Composition.** Erratum: delta of strong composition is 1 - (1 - delta)^k (1 - delta').

# %%
from discreet.lecture import (
    advanced_composition,
    basic_composition,
    optimal_composition,
    strong_composition,
)

print(basic_composition(0.1, 0.0, 100).epsilon, strong_composition(0.1, 0.0, 100, 1e-6).epsilon)
print(advanced_composition(0.1, 0.0, 100, 1e-6).epsilon, optimal_composition(0.1, 0.0, 100, 1e-6).epsilon)
FIGURES["composition"]()

# %% [markdown]
# **Noise of T steps (lecture 4), claim 3.2 (lecture 13).** Erratum: T Gaussian releases are equivalent to one with √T
# times the sensitivity. The printed constant of claim 3.2 gives epsilon 1.11 where 1 is claimed.

# %%
from discreet.lecture import (
    claim_3_2_noise_not_a_guarantee,
    exact_noise,
    lecture_4_noise,
    true_epsilon,
)

print(lecture_4_noise(budget, 1.0, 1000, 100), exact_noise(budget, 1.0, 1000, 100))
print(true_epsilon(claim_3_2_noise_not_a_guarantee(budget, 1.0, 1000, 100), budget, 1.0, 1000, 100))
FIGURES["noise-by-steps"]()

# %% [markdown]
# **Amplification by sampling.** Erratum: Poisson sampling requires add-remove neighbours, fixed size requires replace-one.

# %%
from discreet.lecture import poisson_amplification

print(poisson_amplification(1.0, 1e-5, 0.01, neighbours="add-remove"))

# %% [markdown]
# **The best attack on one record.** Erratum: the certified region is smaller than (epsilon, delta) allows.

# %%
print(dp.account(dp.Gaussian(4.0)).power(false_alarms=0.01))
FIGURES["attack"]()

# %% [markdown]
# **Membership inference on a released model.**

# %%
FIGURES["membership"]()

# %% [markdown]
# **DP-SGD and the moments accountant; figure 2.** Erratum: the curve of strong composition in the figure is not a theorem.

# %%
from discreet.lecture import (
    figure_2_curve_not_a_guarantee,
    moments_accountant,
    strong_composition_of_noisy_sgd,
)

print(
    moments_accountant(0.01, 4.0, 10_000, 1e-5),
    dp.account(dp.PoissonSampled(0.01, dp.Gaussian(4.0)) * 10_000).epsilon(1e-5),
)
print(
    figure_2_curve_not_a_guarantee(0.01, 4.0, 10_000, 1e-5),
    strong_composition_of_noisy_sgd(0.01, 4.0, 10_000, 1e-5).epsilon,
)
FIGURES["moments-accountant"]()

# %% [markdown]
# **Noisy descent**: projected, with momentum, AdaGrad or Adam, with Laplace noise. Updates and projections are
# post-processing. Erratum: the squared loss has unbounded gradients, so clip, or bound data and parameters.

# %%
from discreet.core import AdaGrad, Adam, Momentum, OntoBall
from discreet.lecture import Clip, private_descent
from discreet.linear import Logistic

for name, more in {
    "plain": {},
    "projected": {"project": OntoBall(3.0)},
    "momentum": {"update": Momentum()},
    "AdaGrad": {"update": AdaGrad()},
    "Adam": {"update": Adam()},
}.items():
    fit = private_descent(Logistic(), x, y, budget, steps=30, step_size=1.0, route=Clip(1.0), **more)
    print(f"{name:10} {np.mean((x @ fit.value > 0) == y):.2f}  {fit.guarantee.epsilon.upper:.3f}")
pure = dp.Budget(1.0, 0.0, neighbours="replace-one")
print(
    private_descent(
        Logistic(), x[:, :1], y, pure, steps=5, step_size=1.0, route=Clip(1.0), noise="laplace"
    ).guarantee
)
FIGURES["descent"]()

# %% [markdown]
# **An audit beside the certificate, over training.**

# %%
FIGURES["audit-over-training"]()

# %% [markdown]
# **Exercise 2.1: Algorithm 1 without assumptions on the loss.** Two tables differ in one target. Without clipping, an
# audit contradicts the claim of the noise; with clipping it does not.

# %%
from discreet.audit import OneStep, audit


def algorithm_1(targets, noise, clip_norm, steps=2, step_size=1.0):
    theta, iterates = 0.0, []
    for _ in range(steps):
        iterates.append(theta)
        gradients = np.clip(2 * (theta - targets), -clip_norm, clip_norm)
        theta -= step_size * (gradients.mean() + noise * rng.normal())
    return np.mean(iterates)


tables = np.append(np.zeros(99), -50.0), np.append(np.zeros(99), 50.0)
claim = dp.account(dp.Gaussian(100 * 0.08), neighbours="replace-one")
for clip_norm in (math.inf, 1.0):
    release = lambda world, draws, clip_norm=clip_norm: [  # noqa: E731
        algorithm_1(tables[world], 0.08, clip_norm) for _ in range(draws)
    ]
    result = audit(release, claim, OneStep(draws=4_000), delta=1e-5)
    print(f"clip norm {clip_norm}: epsilon >= {result.lower:.2f}, claimed {claim.epsilon(1e-5):.2f}")

# %% [markdown]
# **Rank theorem.** Erratum: the constant is 4, not 2; far fewer than (n epsilon)² steps are needed.

# %%
from discreet.lecture import Span, enough_steps, excess_by_dimension, lecture_steps, rank_bound

print(Span.of(np.pad(x, ((0, 0), (0, 50)))).rank, rank_bound(budget, 2000, 3, 1.0, 1.0, 1000))
print(excess_by_dimension(budget, 2000, 3, 1.0, 1.0, 1000, (3, 53)))
print(lecture_steps(budget, 2000), enough_steps(budget, 2000, 3))
FIGURES["rank"]()

# %% [markdown]
# **Output and objective perturbation, the exponential mechanism** (the Gibbs distribution, which Langevin descent
# approximates and which is sampled exactly here).

# %%
from discreet.lecture import METHODS, private_minimiser

for method in METHODS:
    fit = private_minimiser(Logistic(), x, y, budget, method=method, norm_guess=5.0)
    print(f"{method:24} {np.mean((x @ fit.value > 0) == y):.2f}")

# %% [markdown]
# **SGD1.** Errata: there is no amplification against an observer who knows the schedule; delta' = delta^(1/3) exceeds
# delta, so equation (6) fails.

# %%
from discreet.parties import Arrangement, observers

notes = Arrangement("sgd1", {"ann": 100, "bob": 100}, noise_multiplier=50.0, rounds=1000)
print(observers(notes, delta=1e-5))
FIGURES["observers"]()

# %% [markdown]
# **SGD2.** Erratum: noise must be independent per party and round. Secure sums need √m times less noise.

# %%
FIGURES["parties-risk"]()
