# %% [markdown]
# # The lecture companion
# Every algorithm and theorem of the notes, with its import, one line that runs, and what had to be corrected. Figures:
# `discreet figures --out figures`.

# %%
import numpy as np

import discreet as dp

rng = np.random.default_rng(0)
budget = dp.Budget(epsilon=1.0, delta=1e-5, neighbours="replace-one")
x = np.clip(rng.normal(size=(2000, 3)), -2, 2) / 4
y = x[:, 0] - x[:, 1] > 0

# %% [markdown]
# **Clipping, the private mean.** Erratum: the lecture's clip norm is within 9/4 : √2 of the best.

# %%
from discreet.core import clip_rows

print(np.linalg.norm(clip_rows(4 * x, 1.0), axis=1).max().round(6))

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

# %% [markdown]
# **Noise of T steps (lecture 4), claim 3.2 (lecture 13).** Erratum: T releases are one with √T times the signal; the
# printed constant of 3.2 gives epsilon 1.11 where 1 is claimed.

# %%
from discreet.lecture import (
    claim_3_2_noise_not_a_guarantee,
    exact_noise,
    lecture_4_noise,
    true_epsilon,
)

print(lecture_4_noise(budget, 1.0, 1000, 100), exact_noise(budget, 1.0, 1000, 100))
print(true_epsilon(claim_3_2_noise_not_a_guarantee(budget, 1.0, 1000, 100), budget, 1.0, 1000, 100))

# %% [markdown]
# **Amplification by sampling.** Erratum: Poisson goes with add-remove, fixed size with replace-one.

# %%
from discreet.lecture import poisson_amplification

print(poisson_amplification(1.0, 1e-5, 0.01, neighbours="add-remove"))

# %% [markdown]
# **Membership inference.** Erratum: the certified region is smaller than (epsilon, delta) allows.

# %%
print(dp.account(dp.Gaussian(4.0)).power(false_alarms=0.01))

# %% [markdown]
# **DP-SGD and the moments accountant; figure 2.** Erratum: the strong curve of the figure is no theorem.

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

# %% [markdown]
# **Noisy descent**: projected, with momentum, AdaGrad or Adam, with Laplace noise. Erratum: squared loss has unbounded
# gradients, so clip, or bound data and parameters.

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

# %% [markdown]
# **Rank theorem.** Erratum: the constant is 4, not 2; far fewer than (n epsilon)² steps are needed.

# %%
from discreet.lecture import Span, enough_steps, excess_by_dimension, lecture_steps

print(
    Span.of(np.pad(x, ((0, 0), (0, 50)))).rank, excess_by_dimension(budget, 2000, 3, 1.0, 1.0, 1000, (3, 53))
)
print(lecture_steps(budget, 2000), enough_steps(budget, 2000, 3))

# %% [markdown]
# **Output and objective perturbation, the exponential mechanism** (the Gibbs law, which Langevin descent approximates and
# which is drawn exactly here).

# %%
from discreet.lecture import METHODS, private_minimiser

for method in METHODS:
    fit = private_minimiser(Logistic(), x, y, budget, method=method, norm_guess=5.0)
    print(f"{method:24} {np.mean((x @ fit.value > 0) == y):.2f}")

# %% [markdown]
# **SGD1 and SGD2.** Erratum: no amplification against whoever knows the schedule; secure sums need √m less noise.

# %%
from discreet.parties import Arrangement, observers

notes = Arrangement("sgd1", {"ann": 100, "bob": 100}, noise_multiplier=50.0, rounds=1000)
print(observers(notes, delta=1e-5))
