"""Federated averaging with secure aggregation."""

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

from fl_dp.task import Network, accuracy, get_weights

app = ServerApp()


def average(results):
    """Return the mean of each metric over the sites."""
    return {name: sum(m[name] for _, m in results) / len(results) for name in results[0][1]}


@app.main()
def main(grid, context):
    def evaluate(server_round, arrays, config):
        np.savez(context.run_config["result"], *arrays)
        return 0.0, {"accuracy": accuracy(arrays)}

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=3,
        min_available_clients=3,
        fit_metrics_aggregation_fn=average,
        evaluate_fn=evaluate,
        initial_parameters=ndarrays_to_parameters(get_weights(Network())),
    )
    legacy = LegacyContext(context, config=ServerConfig(context.run_config["rounds"]), strategy=strategy)
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
