"""Row 24: do the low bits of what is released tell a sum of zero from one that is not?

A float is finer near zero than elsewhere. Noise on a sum that is exactly 0 keeps bits below 2**-54; noise on a sum
near a half cannot have them (Mironov 2012; Haney et al. 2022). So one such bit shows, with certainty, that nobody has
the mark. On a grid of public size there is no such bit at all, whatever the sum is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from card import Broken, Missing, row
from engines import gradients, holder, study_of, vector_run

import discreet as dp
from discreet.linear import PrivateAdditiveClassifier, PrivateLinearRegression, PrivateLogisticRegression
from discreet.parties import Coordinator, Party, rehearse
from discreet.parties.messages import DirectTransport, Message, Roster
from discreet.pytorch import PrivateRun
from discreet.report import Report
from discreet.statistics.mean import FixedClip

Release = Callable[[bool], np.ndarray]
"""Is there a record with the mark? -> numbers that were released of a sum that is else 0."""

RECORDS = 16


def marked_records(marked: bool) -> tuple[np.ndarray, np.ndarray]:
    """A measurement, and a mark that one record has or none."""
    X = np.random.default_rng(0).uniform(-1, 1, (RECORDS, 2))
    X[:, 1] = 0.0
    X[0] = (0.0, float(marked))
    return X, np.arange(RECORDS) % 2


def messages(marked: bool, arithmetic: str | None = None, **training: Any) -> np.ndarray:
    """The coordinate of the mark in every message of a party. Without ``arithmetic`` it is the default."""
    privacy = {"epsilon": 30.0} | ({} if arithmetic is None else {"arithmetic": arithmetic})
    study = study_of(3, {"a": RECORDS, "b": RECORDS}, learning_rate=1e-6, privacy=privacy, **training)
    found = []

    def tapped(party: Party) -> Callable[[bytes], bytes]:
        def answer(frame: bytes) -> bytes:
            reply = party.answer(frame)
            message = Message.decode(reply)
            if message.kind == "noisy":
                found.append(message.array)
            return reply

        return answer

    X, y = marked_records(marked)
    if "tokens" in training:
        X[:, 1] = marked  # a message of SGD1 is about one record, whichever it is
    data, roster = holder(X, y), Roster.without_wire()
    parties = {name: tapped(Party(name, study, data, None, None, roster)) for name in study.names}
    Coordinator(study, DirectTransport(parties), roster).run()
    return np.array(found)[:, 2]


def secure_sums(marked: bool) -> np.ndarray:
    """The model of one round is the sum of two parties, over a power of two; again and again."""
    data = holder(*marked_records(marked))
    study = study_of(
        3,
        {"a": RECORDS, "b": RECORDS, "c": 2 * RECORDS},
        rounds=1,
        learning_rate=1.0,
        privacy={"epsilon": 30.0, "neighbours": "add-remove"},
        aggregation={"kind": "secure"},
    )
    return np.array(
        [rehearse(study, dict.fromkeys(study.names, data)).theta[2] * study.records for _ in range(60)]
    )


def means(marked: bool, **settings: Any) -> np.ndarray:
    x = marked_records(marked)[0][:, 1] * 0.7
    budget = dp.Budget(8.0, 1e-6)
    return np.array(
        [dp.private_mean(x, budget, FixedClip(1.0), records=RECORDS, **settings).sum for _ in range(400)]
    )


@contextmanager
def releases() -> Iterator[list[np.ndarray]]:
    """Everything that leaves the one function that adds noise, wherever in the library it is called."""
    found: list[np.ndarray] = []
    modules = [module for name, module in sys.modules.items() if name.startswith("discreet.")]
    users = [module for module in modules if inspect.isfunction(getattr(module, "add_noise", None))]
    true = {module: module.add_noise for module in users}

    def tapping(add: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(*arguments: Any, **options: Any) -> Any:
            noisy = add(*arguments, **options)
            found.append(np.ravel(np.array(noisy, float)))
            return noisy

        return tapped

    for module in users:
        module.add_noise = tapping(true[module])
    try:
        yield found
    finally:
        for module, add in true.items():
            module.add_noise = add


def fits(marked: bool, kind: type, **settings: Any) -> np.ndarray:
    """Every number that fits release on the way, the model's coefficients being made of nothing else."""
    X, y = marked_records(marked)
    y[:] = 0
    y[0] = marked  # and a class, or a value, that one record has or none
    with releases() as found:
        for _ in range(6):
            kind(epsilon=8.0, delta=1e-6, bounds=(-1, 1), **settings).fit(X, y)
    if not found:
        raise Missing("no release was seen")
    return np.concatenate(found)


logistic = partial(fits, kind=PrivateLogisticRegression, classes=(0, 1))
additive = partial(fits, kind=PrivateAdditiveClassifier, classes=(0, 1))
regression = partial(fits, kind=PrivateLinearRegression, target_bounds=(0, 1))


def updates(marked: bool, **settings: Any) -> np.ndarray:
    """The private gradients of a run on one weight."""
    plan = dp.Recipe(records=RECORDS, steps=400, sampling="full-batch").with_noise(2.0, 1e-6)
    run, model = vector_run(plan, 1, **settings)
    rows = torch.tensor(marked_records(marked)[0][:, 1:] * 0.7)
    return np.array(list(gradients(run, model, rows)))[:, 0] * RECORDS


def hardened_updates(marked: bool) -> np.ndarray:
    if "arithmetic" not in inspect.signature(PrivateRun).parameters:
        raise Missing("there are floats only in this version")
    return updates(marked, arithmetic="hardened")


def default_says_float(_: bool) -> np.ndarray:
    """The default of PrivateRun is floats, which are attacked below as a twin: certificate and report must say so."""
    plan = dp.Recipe(records=RECORDS, steps=1, sampling="full-batch").with_noise(2.0, 1e-6)
    run, model = vector_run(plan, 1)
    next(gradients(run, model, torch.zeros(RECORDS, 1, dtype=torch.float64)))
    certificate = run.certificate()
    for name, text in (("headline", certificate.headline), ("report", Report(certificate).to_markdown())):
        if "real numbers" not in text:
            raise Broken(f"floats, and the {name} does not say so")
    return np.zeros(0)


@row(
    24,
    "low bits tell a sum of 0 from another",
    ours={
        "SGD1": partial(messages, tokens=600),
        "SGD2": partial(messages, rounds=200),
        "secure sums": secure_sums,
        "mean": means,
        "logistic": logistic,
        "linear": regression,
        "additive": additive,
        "PrivateRun by default": default_says_float,
        "PrivateRun(arithmetic='hardened')": hardened_updates,
    },
    twins={
        "SGD1, float": partial(messages, tokens=600, arithmetic="float"),
        "SGD2, float": partial(messages, rounds=200, arithmetic="float"),
        "mean, float": partial(means, arithmetic="float"),
        "logistic, float": partial(logistic, arithmetic="float"),
        "linear, float": partial(regression, arithmetic="float"),
        "PrivateRun, float": updates,
    },
)
def precision(release: Release) -> str:
    rates = []
    for marked in (False, True):
        scaled = np.ldexp(release(marked), 54)
        if not scaled.size:
            return "FLOATS, NOT PROTECTED, as headline and report say"
        rates.append(float(np.mean(scaled != np.rint(scaled))))
    if any(rates):
        raise Broken(f"rates {rates[0]:.3f} and {rates[1]:.3f}")
    return "no bit below 2**-54 in either world"
