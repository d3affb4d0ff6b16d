# %% [markdown]
# # Three hospitals
# They may not pool their records. Each adds its own noise; everybody is told what every observer could learn.

# %%
import discreet as dp
from discreet.parties import Arrangement, noise_for, observers

hospitals = Arrangement("sgd2", {"north": 1200, "south": 800, "west": 2000}, rounds=200)
noise = noise_for(hospitals, dp.Budget(1.0, 1e-6, "replace-one"), against="coordinator")
print(observers(hospitals.with_noise(noise), delta=1e-6))

# %% [markdown]
# With secure sums the coordinator sees nothing but the sum, and the hospitals share the noise of one.

# %%
secure = Arrangement("sgd2", hospitals.parties, rounds=200, aggregation="secure")
less = noise_for(secure, dp.Budget(1.0, 1e-6, "replace-one"), against="coordinator")
for name, arrangement, needed in (("plain", hospitals, noise), ("secure", secure, less)):
    share = arrangement.with_noise(needed).noise_share
    print(f"{name:7} noise multiplier {needed:6.1f}, of which each hospital adds {share:.2f}")

# %% [markdown]
# The whole study, over a real network with TLS on this machine: `python examples/three_hospitals.py`.
