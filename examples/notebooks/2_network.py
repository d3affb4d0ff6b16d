# %% [markdown]
# # DP-SGD in your own loop
# Model, optimizer and loop stay yours. `PrivateRun` wraps nothing: it draws the batches, charges, clips, sums, adds noise,
# and leaves the result in `.grad`.

# %%
import torch

import discreet as dp
from discreet.pytorch import PrivateRun

generator = torch.Generator().manual_seed(0)
x = torch.randn(2000, 10, generator=generator)
y = (x[:, 0] * x[:, 1] > 0).long()


def losses(model, batch):  # one loss per example
    inputs, labels = batch
    return torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")


# %% [markdown]
# The plan fixes sampling, clipping, noise and accounting together, before data is touched.

# %%
plan = dp.Recipe(records=2000, batch_size=200, epochs=10).calibrate(dp.Budget(epsilon=8.0, delta=1e-5))
print(plan.explain()[:400])

# %%
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
run = PrivateRun(plan, model, torch.optim.Adam(model.parameters(), lr=0.01), losses)
for batch in run.batches((x, y)):
    run.step(batch)
print(run.certificate().guarantee)

# %% [markdown]
# A network that mixes examples has no per-example gradients, and is refused by the name of the layer.

# %%
mixing = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
try:
    refused = PrivateRun(plan, mixing, torch.optim.SGD(mixing.parameters(), lr=0.1), losses)
    for batch in refused.batches((x, y)):
        refused.step(batch)
except dp.DiscreetError as error:
    print(type(error).__name__, str(error)[:120])
