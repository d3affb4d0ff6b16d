"""What the library offers, as functions of records: each returns everything that it releases, as one vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import discreet as dp
from discreet.linear import PrivateAdditiveClassifier, PrivateLinearRegression, PrivateLogisticRegression
from discreet.linear.linear_holder import LinearHolder
from discreet.linear.losses import Logistic
from discreet.parties import Study, rehearse
from discreet.pytorch import PrivateRun
from discreet.statistics.mean import Ball

torch.set_num_threads(1)


def logistic(X: np.ndarray, y: np.ndarray, **settings: Any) -> np.ndarray:
    declared = {"epsilon": 1.0, "delta": 1e-6, "classes": (0, 1), "bounds": (-3, 3)} | settings
    model = PrivateLogisticRegression(**declared).fit(X, y)
    return np.r_[np.ravel(model.coef_), np.ravel(model.intercept_)]


def least_squares(X: np.ndarray, y: np.ndarray, **settings: Any) -> np.ndarray:
    declared = {"epsilon": 1.0, "delta": 1e-6, "target_bounds": (0, 1), "bounds": (-3, 3)} | settings
    model = PrivateLinearRegression(**declared).fit(X, y)
    return np.r_[np.ravel(model.coef_), np.ravel(model.intercept_)]


def curves(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """An additive model, as its decisions on made-up records."""
    model = PrivateAdditiveClassifier(epsilon=1.0, delta=1e-6, classes=(0, 1), bounds=(-3, 3)).fit(X, y)
    return model.decision_function(records(columns=X.shape[1])[0])


def mean(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.atleast_1d(dp.private_mean(X, dp.Budget(1.0, 1e-6), Ball(10.0), records=64).value)


def network(X: np.ndarray, y: np.ndarray, dtype: torch.dtype = torch.float32) -> np.ndarray:
    model = nn.Linear(X.shape[1], 1).to(dtype)
    data = torch.tensor(X).to(dtype), torch.tensor(np.asarray(y, float)).to(dtype)
    plan = dp.Recipe(records=64, batch_size=16, steps=5).calibrate(dp.Budget(1.0, 1e-6))
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=0.1), squares)
    for batch in run.batches(data):
        run.step(batch)
    return weights(model)


def two_parties(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A rehearsal of SGD2: the first party holds these records, the second one's are all zero."""
    neighbours = {"neighbours": "add-remove"}  # how many records there are is private, too
    study = study_of(X.shape[1] + 1, {"a": 64, "b": 64}, rounds=5, privacy=neighbours)
    holders = {"a": holder(X, y), "b": holder(np.zeros((64, X.shape[1])), np.zeros(64))}
    return rehearse(study, holders).theta


TRAINERS = {
    "logistic": logistic,
    "linear": least_squares,
    "additive": curves,
    "PrivateRun": network,
    "mean": mean,
    "SGD2": two_parties,
}


def records(rows: int = 64, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Made-up records."""
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (rows, columns)), rng.integers(0, 2, rows).astype(float)


def study_of(dimension: int, parties: dict[str, int], **changes: Any) -> Study:
    aggregation = changes.pop("aggregation", {})
    privacy = {"epsilon": 1.0, "delta": 1e-6} | changes.pop("privacy", {})
    algorithm = "sgd1" if "tokens" in changes else "sgd2"
    return Study.from_dict(
        {
            "study": {"name": "scorecard", "algorithm": algorithm},
            "parties": parties,
            "privacy": privacy,
            "training": {"clip_norm": 1.0} | changes,
            "model": {"kind": "logistic", "dimension": dimension},
            "aggregation": aggregation,
        }
    )


def holder(X: np.ndarray, y: np.ndarray) -> LinearHolder:
    return LinearHolder(Logistic(), X, y, clip_norm=1.0)


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return ((model(inputs)[:, 0] - targets) ** 2).clone()


def products(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Losses whose gradient is the record itself, whatever the weights are."""
    return batch @ model.weight[0]


def weights(model: nn.Module) -> np.ndarray:
    return torch.cat([value.detach().reshape(-1).double() for value in model.parameters()]).numpy()


def vector_model(width: int, dtype: torch.dtype = torch.float64) -> nn.Linear:
    model = nn.Linear(width, 1, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    return model


def vector_run(plan: dp.Plan, width: int, **settings: Any) -> tuple[PrivateRun, nn.Linear]:
    """A run on a vector of weights by plain SGD."""
    model = vector_model(width)
    return PrivateRun(plan, model, torch.optim.SGD(model.parameters(), lr=1.0), products, **settings), model


def gradients(run: PrivateRun, model: nn.Linear, rows: Any) -> Iterator[np.ndarray]:
    """What each step hands to the optimizer."""
    for batch in run.batches(rows):
        run.step(batch)
        yield model.weight.grad[0].numpy().copy()
