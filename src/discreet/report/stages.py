"""Plain-language descriptions of the releases of each stage of a fit.

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
    "counts": "the number of records, for each class if there are classes",
    "classes": "the number of records of each class",
    "rows-of-people": "the typical number of rows of a person",
    "ranges": "the approximate range of each column",
    "ranges-zoom": "a more precise range of each column",
    "marginals": "the distribution of each column",
    "marginals-zoom": "the distribution of some columns, within a narrower range",
    "row-norm": "the norm of rows that are mostly zeros",
    "row-norms": "the typical norm of a row",
    "whitening": "the second moments of the columns",
    "whitened-row-norms": "the norm of rows after the columns are whitened",
    "target": "the typical size of the target",
    "target-range": "the approximate range of the target",
    "target-range-zoom": "a more precise range of the target",
    "target-mean": "the mean of the target",
    "target-zoom": "a narrower range of the target",
    "gradients": "the gradient steps that fit the model",
    "recalibration": "level and spread of the predictions",
    "score-sizes": "the typical size of the scores",
    "row-norms-1": "the norm of rows, with interacting pairs of columns",
    "whitening-1": "the second moments of columns and pairs",
    "whitened-row-norms-1": "the norm of rows after columns and pairs are whitened",
    "pair-ranks": "the pairs of columns that vary together",
    "first-gradients": "a few gradient steps of a model without pairs",
    "pairs": "candidate pairs of columns that interact beyond that model",
    "pairs-again": "the selection among a few candidate pairs",
    "pair-cells": "the interaction tables of those pairs",
    "inference-start": "a first step towards the coefficients whose standard errors are requested",
    "inference": "the sampling variance of the coefficients, for standard errors",
}
"""By name; a number at the end of a name counts how often it was looked."""


class ReportedStage(NamedTuple):
    """A part of the procedure by its name: how much noise each release got, and its share of what was spent."""

    name: str
    what: str
    releases: int
    noise_multiplier: float
    share: float


def sentence_for(stage: str, procedure: str) -> str:
    """Describe the release of a stage; unknown stages are described as part of the procedure."""
    known = SENTENCES.get(stage) or SENTENCES.get(re.sub(r"-\d+$", "", stage))
    return known or f"sums that belong to {procedure or 'the procedure'}"


def stages_of(certificate: Certificate) -> tuple[ReportedStage, ...]:
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
        ReportedStage(name, sentence_for(name, certificate.plan.name), count, noise, count / noise**2 / total)
        for name, count, noise in gaussians
    )
