"""What the stages of a fit release, in words for people who do not read its code.

A ledger knows a stage by the name of its run. Every name that ``discreet.linear`` gives to a stage has a sentence in
:data:`SENTENCES`; a test reads the names out of the source. Other engines' runs are named by their owners, and are
told by the name of their plan.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from discreet.certificate import Certificate
from discreet.events import Gaussian

SENTENCES = {
    "counts": "how many records there are, of each class where there are classes",
    "classes": "how many records each class has",
    "rows-of-people": "how many rows a person typically has",
    "ranges": "roughly where the values of each column lie",
    "ranges-zoom": "more closely where the values of each column lie",
    "marginals": "each column by itself: where its values lie",
    "marginals-zoom": "some columns by themselves, within a narrower range",
    "row-norm": "how long rows are that are mostly zeros",
    "row-norms": "how long rows typically are",
    "whitening": "how columns vary together",
    "whitened-row-norms": "how long rows are once columns are made comparable",
    "target": "how large the target typically is",
    "target-range": "roughly where the values of the target lie",
    "target-range-zoom": "more closely where the values of the target lie",
    "target-mean": "the mean of the target",
    "target-zoom": "a narrower range of the target",
    "gradients": "the steps of the descent, which make the model",
    "recalibration": "level and spread of the predictions",
    "score-sizes": "how large scores typically are",
    "row-norms-1": "how long rows are, with pairs of columns that act together",
    "whitening-1": "how columns and pairs vary together",
    "whitened-row-norms-1": "how long rows are once columns and pairs are made comparable",
    "pair-ranks": "which pairs of columns go up and down together",
    "first-gradients": "a few steps of a model without pairs",
    "pairs": "which pairs of columns that model leaves something to say",
    "pairs-again": "which of a few pairs act together indeed",
    "pair-cells": "the tables of those pairs",
    "inference-start": "a first step towards the coefficients whose errors are asked for",
    "inference": "how far coefficients would differ in another sample, for standard errors",
}
"""By name; a number at the end of a name counts how often it was looked."""


class Stage(NamedTuple):
    """A part of the procedure by its name: how much noise each release got, and its share of what was spent."""

    name: str
    what: str
    releases: int
    noise_multiplier: float
    share: float


def sentence_for(stage: str, procedure: str) -> str:
    """What a stage releases; of a stage that has no sentence, that it belongs to the procedure."""
    known = SENTENCES.get(stage) or SENTENCES.get(re.sub(r"-\d+$", "", stage))
    return known or f"sums that belong to {procedure or 'the procedure'}"


def stages_of(certificate: Certificate) -> tuple[Stage, ...]:
    """The stages of a fit by name; empty if not all of its releases are sums with Gaussian noise."""
    if certificate.plan.stages:
        return ()
    digest = certificate.plan.digest()
    parts = [
        (run.name.rpartition("/")[2], count, event)
        for run in certificate.ledger.runs
        if run.plan_hash == digest
        for (event, _), count in zip(run.event.parts(), run.taken, strict=True)
        if count
    ]
    gaussians = [
        (name, count, event.noise_multiplier) for name, count, event in parts if isinstance(event, Gaussian)
    ]
    if len(gaussians) < len(parts):
        return ()
    total = math.fsum(count / noise**2 for _, count, noise in gaussians)
    return tuple(
        Stage(name, sentence_for(name, certificate.plan.name), count, noise, count / noise**2 / total)
        for name, count, noise in gaussians
    )
