"""One site of a Flower federation, whose answers are masked for secure aggregation."""

import torch
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

import discreet as dp
from discreet.adapters import FlowerSite
from fl_dp.task import Network, load_data


class Client(NumPyClient):
    def __init__(self, context):
        self.model = Network()
        self.loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
        plan = dp.Recipe(500, batch_size=50, epochs=8).calibrate(dp.Budget(epsilon=4.0, delta=1e-5))
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        parts = plan, self.model, optimizer, losses, self.loader
        self.site = FlowerSite(*parts, rounds=2, folder=context.node_config["folder"])

    def fit(self, parameters, config):
        return self.site.fit(parameters)


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def client_fn(context):
    return Client(context).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
