# %% [markdown]
# # Planning and accounting
# What does a release cost, how much noise does a budget need, and which plan is best for it?

# %%
import discreet as dp
from discreet.plan import explore

step = dp.PoissonSampled(rate=0.01, of=dp.Gaussian(noise_multiplier=4.0))
curve = dp.account(step * 10_000)
print(curve.guarantee(delta=1e-5))
print(curve.epsilon_bounds(delta=1e-5))

# %% [markdown]
# The best attack there can be, at a few false-alarm rates.

# %%
for alarms in (0.001, 0.01, 0.1):
    print(f"{alarms:6.1%} false alarms: {curve.power(alarms):6.2%} found")

# %%
noise = dp.calibrate(lambda z: dp.PoissonSampled(0.01, dp.Gaussian(z)) * 10_000, dp.Budget(1.0, 1e-5))
print(f"noise multiplier {noise:.4f} for epsilon 1")

# %% [markdown]
# Larger batches and more epochs, compared at the same budget.

# %%
recipe = dp.Recipe(records=50_000, batch_size=500, epochs=10)
table = explore(
    recipe, dp.Budget(2.0, 1e-6), batch_size=[250, 1000, 4000], epochs=[10, 40], dimension=100_000
)
print(table)

# %% [markdown]
# What has no theorem is refused, with what to use instead.

# %%
try:
    dp.account(dp.FixedSizeSampled(batch_size=600, records=60_000, of=dp.Gaussian(4.0)))
except dp.DiscreetError as error:
    print(error)
