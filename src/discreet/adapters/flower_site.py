"""A site of a Flower federation, private: :class:`FlowerSite` for its ClientApp.

    app = ClientApp()

    @app.train()
    def train(message, context):
        site = FlowerSite(plan, model, optimizer, losses, loader, rounds=5, folder="/srv/dp/site-1")
        return site.train(message)

Flower starts a process for each message, so the site is made in the function and continues from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discreet.adapters.federated_site import PrivateSite
from discreet.errors import InvalidParameter

if TYPE_CHECKING:
    from flwr.app import Message


class FlowerSite(PrivateSite):
    """A :class:`~discreet.adapters.federated_site.PrivateSite` that answers messages of Flower.

    Answers hold the metrics ``privacy_epsilon``, ``privacy_delta``, ``privacy_steps`` and ``privacy_trained``. The
    server weighs them by the plan's declared number of records, not by the number that the site has.
    """

    def train(self, message: Message) -> Message:
        """Answer one training message, for a function decorated by ``@app.train()``."""
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # in an environment of its own

        records = message.content.array_records
        if len(records) != 1:
            remedy = "must hold one ArrayRecord, with the weights of the model."
            raise InvalidParameter("message", ", ".join(records) or None, remedy)
        ((name, arrays),) = records.items()
        result = self.train_round({key: array.numpy() for key, array in arrays.items()})
        metrics = MetricRecord(result.metrics | {"num-examples": self.plan.records})
        content = RecordDict({name: ArrayRecord(result.weights), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def fit(
        self, parameters: Sequence[NDArray[Any]], config: Mapping[str, Any] | None = None
    ) -> tuple[list[NDArray[Any]], int, dict[str, float]]:
        """Answer one round, as ``NumPyClient.fit`` does: arrays in the order of the model's state dictionary.

        Nothing in ``config`` is used: the plan decides, and not the server.
        """
        names = list(self.model.state_dict())
        if len(parameters) != len(names):
            remedy = f"must be {len(names)} arrays, one for each entry of the model's state dictionary."
            raise InvalidParameter("parameters", len(parameters), remedy)
        result = self.train_round(dict(zip(names, parameters, strict=True)))
        arrays = [np.asarray(value) for value in result.weights.values()]
        return arrays, self.plan.records, result.metrics
