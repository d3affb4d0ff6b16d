"""Federated averaging of two sites in NVFlare's simulator."""

import argparse

from network import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--workspace", default="build/nvflare")
parser.add_argument("--client", default="")
options = parser.parse_args()

recipe = FedAvgRecipe(
    name="hello-dp",
    model=Network(),
    min_clients=2,
    num_rounds=options.rounds,
    train_script="client.py",
    train_args=options.client,
)
run = recipe.execute(SimEnv(num_clients=2, workspace_root=options.workspace))
print("Status:", run.get_status(), "Results:", run.get_result())
