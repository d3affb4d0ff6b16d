"""One site of an NVFlare job, which trains with differential privacy."""

import argparse

import nvflare.client as flare
import torch
from network import Network, accuracy, load_data
from opacus import PrivacyEngine
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=75)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()

    flare.init()
    site_name = flare.get_site_name()
    loader, public = load_data(site_name, options.batch_size)
    model = Network()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine = None

    while flare.is_running():
        received = flare.receive()
        plain_model = model if engine is None else model._module
        plain_model.load_state_dict(received.params)
        global_accuracy = accuracy(model, public)
        if engine is None:
            engine = PrivacyEngine()
            model, optimizer, loader = engine.make_private_with_epsilon(
                module=model,
                optimizer=optimizer,
                data_loader=loader,
                epochs=options.epochs * received.total_rounds,
                target_epsilon=options.epsilon,
                target_delta=options.delta,
                max_grad_norm=1.0,
            )
        for _ in range(options.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                criterion(model(images), labels).backward()
                optimizer.step()
        reply = flare.FLModel(
            params=model._module.state_dict(),
            metrics={"privacy_epsilon": engine.get_epsilon(options.delta)},
            meta={"NUM_STEPS_CURRENT_ROUND": options.epochs * len(loader)},
        )
        reply.metrics["accuracy"] = global_accuracy
        print(f"{site_name}, round {received.current_round}: accuracy {global_accuracy:.3f}", reply.metrics)
        flare.send(reply)


if __name__ == "__main__":
    main()
