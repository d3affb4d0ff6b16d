"""One site of an NVFlare job, which trains with differential privacy."""

import argparse

import nvflare.client as flare
import torch
from network import Network, accuracy, load_data
from torch import nn

import discreet as dp
from discreet.adapters import FlareSite


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=75)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()

    flare.init()
    site_name = flare.get_site_name()
    loader, public = load_data(site_name, options.batch_size)
    model = Network()
    criterion = nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    recipe = dp.Recipe(750, batch_size=options.batch_size, epochs=options.epochs * options.rounds)
    plan = recipe.calibrate(dp.Budget(options.epsilon, options.delta))
    folder = f"{options.folder}/{site_name}"

    def losses(model, batch):
        return criterion(model(batch[0]), batch[1])

    site = FlareSite(plan, model, optimizer, losses, loader, rounds=options.rounds, folder=folder)

    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        global_accuracy = accuracy(model, public)
        reply = site.train(received)
        reply.metrics["accuracy"] = global_accuracy
        print(f"{site_name}, round {received.current_round}: accuracy {global_accuracy:.3f}", reply.metrics)
        flare.send(reply)


if __name__ == "__main__":
    main()
