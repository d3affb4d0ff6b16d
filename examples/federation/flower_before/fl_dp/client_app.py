"""One site of a Flower federation, whose answers are masked for secure aggregation."""

from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp

from fl_dp.task import Network, get_weights, load_data, set_weights, train


class Client(NumPyClient):
    def __init__(self, context):
        self.model = Network()
        self.loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])

    def fit(self, parameters, config):
        set_weights(self.model, parameters)
        metrics = train(self.model, self.loader, epochs=4)
        return get_weights(self.model), len(self.loader.dataset), metrics


def client_fn(context):
    return Client(context).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, fixedclipping_mod])
