"""Faults of real implementations, put into our own engines, one function at a time.

``subject(engine, fault)`` gives a Subject and the Specification that it is sold with. An engine is described by
what its release is made of; a fault replaces one of the parts. Everything else is the engine as it is shipped.
"""

import copy
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from unittest import mock

import numpy as np

from discreet.audit.examine import Specification, Subject
from discreet.core import noise as core_noise
from discreet.core.clipping import clip_rows
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream
from discreet.events import Gaussian
from discreet.lecture.gradient_sum import GradientSum
from discreet.linear.losses import Logistic
from discreet.plan.plan import Plan
from discreet.plan.stage import Stage

CLIP, NOISE, RECORDS, STEPS, WIDTH = 1.0, 2.0, 40, 120, 200
FULL = Plan((Stage("descent", "full-batch", RECORDS, RECORDS, 1, CLIP, NOISE),), delta=1e-5)
POISSON = Plan((Stage("descent", "poisson", 400, RECORDS, STEPS, CLIP, NOISE),), delta=1e-5)
"""One step on all of a few records, to be replayed; and a run of many steps. They divide by the same number."""

FAULTS = (
    "none",
    "noise x 0.5",
    "noise x 0.9",
    "clip after mean",
    "1 of 4 microbatches noised",
    "realised batch size as divisor",
    "noise seed reused in each step",
    "replace-one sold with sensitivity C",
    "shuffled batches sold as Poisson",
)


@dataclass(frozen=True)
class Engine:
    """Where an engine's parts are, and how one release, a run on data that add nothing, and its batches are had."""

    name: str
    noise_in: tuple[str, ...]  # the modules whose add_noise is the engine's
    release: Callable  # records -> the noisy mean
    run: Callable  # () -> the noise of a whole run, (steps, coordinates)
    patches: dict[str, Callable]  # fault -> () -> patches of the engine's own parts
    watched: Callable | None = None  # list -> a patch that writes the batches down; None: those of Stage
    divisor: float = RECORDS
    noise: float = NOISE
    width: int = WIDTH


def weaker(factor: float) -> Callable:
    def add(total, event, stream=None, *, out=None):
        return add_noise(total, Gaussian(event.noise_multiplier * factor), stream, out=out)

    return add


def repeated(total, event, stream=None, *, out=None):
    return add_noise(total, event, RandomStream(unsafe_seed=7), out=out)


def one_of_four(total, event, stream=None, *, out=None):
    """Four microbatches, each of which should get a share of half the standard deviation; one does."""
    return add_noise(total, Gaussian(event.noise_multiplier / 2), stream, out=out)


def silent(total, event, stream=None, *, out=None):
    """No noise at all: how the sums are seen."""
    if out is None:
        return copy.deepcopy(total.value)
    if out is not total.value:
        out[...] = total.value
    return out


NOISE_FAULTS = {
    "noise x 0.5": weaker(0.5),
    "noise x 0.9": weaker(0.9),
    "1 of 4 microbatches noised": one_of_four,
    "noise seed reused in each step": repeated,
}


def shuffled(stage: Stage, stream=None, *, rows=None, start=0) -> Iterator[np.ndarray]:
    rng, count = np.random.default_rng(), stage.records if rows is None else rows
    made = 0
    if count == 0:
        yield from [np.zeros(0, np.int64)] * stage.steps
        return
    while made < stage.steps:
        order = rng.permutation(count)
        for first in range(0, count, stage.batch_size):
            if made < stage.steps:
                yield np.sort(order[first : first + stage.batch_size])
                made += 1


def clipped_after_mean(total: np.ndarray, count: int) -> np.ndarray:
    """The sum of a library that clips the mean gradient and multiplies it by the declared batch size."""
    mean = total / max(1, count)
    length = float(np.linalg.norm(mean))
    return mean * min(1.0, CLIP / length if length > 0 else 1.0) * RECORDS


class CoreLoop:
    """Twenty lines that anybody would write with clip_rows, add_noise and the plan's sampler."""

    def summed(self, rows):
        return clip_rows(rows, CLIP).sum(0)

    def divisor(self, rows):
        return RECORDS

    def release(self, rows):
        total = BoundedSum(self.summed(rows), CLIP)
        return core_noise.add_noise(total, Gaussian(NOISE)) / self.divisor(rows)

    def run(self):
        rows = np.zeros((POISSON.records, WIDTH))
        return np.array([self.release(rows[batch]) for batch in POISSON.stage().batches()])

    def engine(self) -> Engine:
        after = lambda loop, rows: clipped_after_mean(clip_rows(rows, 1e90).sum(0), len(rows))  # noqa: E731
        return Engine(
            "core loop",
            ("discreet.core.noise",),
            self.release,
            self.run,
            {
                "clip after mean": lambda: [mock.patch.object(CoreLoop, "summed", after)],
                "realised batch size as divisor": lambda: [
                    mock.patch.object(CoreLoop, "divisor", lambda loop, rows: max(1, len(rows)))
                ],
            },
        )


def linear_engine() -> Engine:
    linear = importlib.import_module("discreet.lecture.certified_descent")
    at, decide = GradientSum.at, linear._decide

    def release(records):
        features, labels = records
        model = linear.private_descent(Logistic(), features, labels, FULL, step_size=1.0, average="last")
        return -model.value

    def run():
        features, labels = np.zeros((400, WIDTH)), np.zeros(400)
        model = linear.private_descent(Logistic(), features, labels, POISSON, step_size=1.0)
        return -np.diff(model.path.iterates, axis=0)

    def after_mean(gradients, theta, batch=None, norm="l2"):
        with mock.patch.object(gradients, "clip_norm", 1e90):
            total = at(gradients, theta, batch, norm).value
        return BoundedSum(clipped_after_mean(total, len(gradients._table.rows)), CLIP)

    def realised(plan, gradients, *rest):
        return replace(decide(plan, gradients, *rest), divisor=float(max(1, len(gradients._table.rows))))

    return Engine(
        "linear private descent",
        ("discreet.trusted.permits",),
        release,
        run,
        {
            "clip after mean": lambda: [mock.patch.object(GradientSum, "at", after_mean)],
            "realised batch size as divisor": lambda: [mock.patch.object(linear, "_decide", realised)],
        },
    )


def torch_engine() -> Engine:
    import torch

    from discreet.core.clipping import Flat
    from discreet.pytorch import PrivateRun
    from discreet.pytorch.clipped_sum import ClippedSum
    from discreet.pytorch.optimizer_step import OptimizerStep
    from discreet.pytorch.per_example import number_of_examples

    torch.manual_seed(0)
    start, call, step = torch.nn.Linear(WIDTH, 10), ClippedSum.__call__, OptimizerStep.step

    def losses(model, batch):
        features, targets = batch
        return ((model(features) - targets[:, None]) ** 2).sum(1)

    @mock.patch(
        "discreet.pytorch.private_steps.SpotCheck", mock.MagicMock(return_value=mock.MagicMock(refusal=""))
    )
    @mock.patch("discreet.pytorch.run.SingleExamples", mock.Mock())
    @mock.patch("discreet.pytorch.checks.model_guard.check_read", mock.Mock())
    def taken(plan, features, targets):
        """The gradients of a run. Its first step would check model and losses, and refuse a clip after the mean."""
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run, found = PrivateRun(plan, model, optimizer, losses), []
        for batch in run.batches((torch.tensor(features), torch.tensor(targets))):
            run.step(batch)
            found.append(torch.cat([value.grad.reshape(-1) for value in model.parameters()]).numpy())
        return np.array(found)

    def release(records):
        features, labels = records
        return taken(FULL, features.astype(np.float32), labels.astype(np.float32))[0]

    def run():
        """The gradients of records that hold NaN count as zero: what is left is noise."""
        features = np.full((400, WIDTH), np.nan, np.float32)
        return taken(POISSON, features, np.zeros(400, np.float32))

    def after_mean(clipped, batch):
        with mock.patch.object(clipped, "rule", Flat(1e90)):
            sums = call(clipped, batch)
        sums.vector[...] = torch.from_numpy(
            clipped_after_mean(sums.vector.numpy(), number_of_examples(batch))
        )
        return sums

    def realised():
        seen = [1]

        def counting(clipped, batch):
            seen[0] = number_of_examples(batch)
            return call(clipped, batch)

        def dividing(descent, sums, divisor):
            realised_size, seen[0] = float(seen[0]), 1
            step(descent, sums, realised_size)

        return [
            mock.patch.object(ClippedSum, "__call__", counting),
            mock.patch.object(OptimizerStep, "step", dividing),
        ]

    return Engine(
        "PrivateRun on torch",
        ("discreet.trusted.permits",),
        release,
        run,
        {
            "clip after mean": lambda: [mock.patch.object(ClippedSum, "__call__", after_mean)],
            "realised batch size as divisor": realised,
        },
    )


def parties_engine() -> Engine:
    """What the coordinator of an SGD2 study sees of one party, divided as it divides."""
    from discreet.linear.linear_holder import LinearHolder
    from discreet.parties import rehearse, round_sums, sgd2
    from discreet.parties.study import Privacy, Study, Training

    width = 600  # a rehearsal is slow, and a wide one shows as much noise as many narrow ones

    def study(records, other, **training):
        return Study(
            "audited",
            "sgd2",
            {"a": records, "b": other},
            Privacy(4.0, 1e-5, "add-remove", arithmetic="float"),  # the faults are put into float sums
            Training(CLIP, learning_rate=0.01, **training),
            {"kind": "logistic", "dimension": width + 1},
        )

    one = study(RECORDS, 1, rounds=1)
    many = study(POISSON.records, 10, rounds=STEPS, rate=POISSON.rate)  # divides by the same 41
    gradient, drawn, summed = round_sums.gradient, sgd2.draw_records, LinearHolder.clipped_sum

    def holder(features, labels):
        return LinearHolder(Logistic(), features, labels, clip_norm=CLIP, constant=0.0)

    def seen(agreed, features, labels):
        found, divided = [], round_sums.gradient  # with the fault in it

        def seeing(study, sums):
            found.append(divided(study, {"a": sums["a"]}))
            return divided(study, sums)

        with mock.patch.object(round_sums, "gradient", seeing):
            rehearse(agreed, {"a": holder(features, labels), "b": holder(np.zeros((1, width)), [0])})
        return np.array(found)

    def release(records):
        return seen(one, *records)[0]

    def run():
        noise = seen(many, np.zeros((many.parties["a"], width)), np.zeros(many.parties["a"]))
        return noise * one.noise_multiplier / many.noise_multiplier

    def after_mean(holder, theta, records):
        with mock.patch.object(holder, "_clip_norm", 1e90):
            total = summed(holder, theta, records).value
        count = holder.records if records is None else len(records)
        return BoundedSum(clipped_after_mean(total, count), CLIP)

    def realised():
        counted = [1]

        def counting(terms, rows, stream):
            batch = drawn(terms, rows, stream)
            if terms.party == "a":
                counted[0] = rows if batch is None else len(batch)
            return batch

        def dividing(study, sums):
            return gradient(study, sums) * (RECORDS / max(1, counted[0]))

        return [
            mock.patch.object(sgd2, "draw_records", counting),
            mock.patch.object(round_sums, "gradient", dividing),
        ]

    def shuffling():
        loaders = {}

        def next_of(terms, rows, stream):
            if terms.numbers.rate == 1:
                return None
            stage = replace(POISSON.stage(), records=rows, batch_size=round(rows * terms.numbers.rate))
            return next(loaders.setdefault(terms.party, shuffled(stage)))

        return [mock.patch.object(sgd2, "draw_records", next_of)]

    def watched(found):
        drawing = sgd2.draw_records  # with the fault in it

        def watching(terms, rows, stream):
            batch = drawing(terms, rows, stream)
            if terms.party == "a":
                found.append(np.array(batch))
            return batch

        return mock.patch.object(sgd2, "draw_records", watching)

    return Engine(
        "SGD2 parties",
        ("discreet.trusted.permits",),
        release,
        run,
        {
            "clip after mean": lambda: [mock.patch.object(LinearHolder, "clipped_sum", after_mean)],
            "realised batch size as divisor": realised,
            "shuffled batches sold as Poisson": shuffling,
        },
        watched,
        divisor=one.records,
        noise=one.noise_multiplier,
        width=width,
    )


ENGINES = {
    "core loop": lambda: CoreLoop().engine(),
    "linear private descent": linear_engine,
    "PrivateRun on torch": torch_engine,
    "SGD2 parties": parties_engine,
}


@contextmanager
def seeded(engine: Engine, fault: str):
    """The engine with the fault in it, as long as the context lasts."""
    patches = []
    if fault in NOISE_FAULTS:
        patches = [mock.patch(f"{module}.add_noise", NOISE_FAULTS[fault]) for module in engine.noise_in]
    elif fault in engine.patches:
        patches = engine.patches[fault]()
    elif fault == "shuffled batches sold as Poisson":
        patches = [mock.patch.object(Stage, "batches", shuffled)]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def watched_stages(found: list):
    """A patch that writes down the batches of every stage."""
    batches = Stage.batches

    def watching(*arguments, **options):
        for batch in batches(*arguments, **options):
            found.append(np.array(batch))
            yield batch

    return mock.patch.object(Stage, "batches", watching)


def subject(engine: Engine, fault: str) -> tuple[Subject, Specification]:
    """What the engine hands in under the fault, and what is claimed of it."""

    def noisy(records):
        with seeded(engine, fault):
            return engine.release(records)

    def sums(records):
        with seeded(engine, fault), ExitStack() as stack:
            for module in engine.noise_in:
                stack.enter_context(mock.patch(f"{module}.add_noise", silent))
            return engine.release(records)

    @cache
    def run():
        """The noise and the batches of a whole run."""
        drawn = []
        with seeded(engine, fault), (engine.watched or watched_stages)(drawn):
            return engine.run(), drawn

    unit = CLIP / engine.divisor
    claim = Specification(unit, engine.noise * unit, rate=POISSON.rate, records=POISSON.records)
    if fault == "replace-one sold with sensitivity C":
        claim = replace(claim, neighbours="replace-one")
    return Subject(
        examples(engine), sums, noisy, lambda: run()[0], lambda: run()[1], f"{engine.name}, {fault}"
    ), claim


def examples(engine: Engine):
    """Made-up records: rows for the loop, features and labels for the others."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(RECORDS, engine.width))
    return rows if engine.name == "core loop" else (rows, rng.integers(0, 2, RECORDS))
