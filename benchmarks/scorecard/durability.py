"""Rows 20 to 23 and 27 to 29: crashes, resumed runs, seeds, crafted files, and many processes at once."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from card import Broken, row
from engines import records, vector_run

import discreet as dp

STEPS, SAVED, CRASHED, WIDTH = 40, 10, 24, 20
ZEROS = torch.zeros(100, WIDTH, dtype=torch.float64)
"""Records that add nothing: every update is the noise."""


def plan_of(noise: float = 1.0) -> dp.Plan:
    return dp.Recipe(records=100, batch_size=10, steps=STEPS).with_noise(noise, 1e-6)


def seed_everything() -> None:
    """What scripts do at their beginning, for results that can be repeated."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


Story = tuple[list[np.ndarray], int]
"""All noise that was released, and the number of steps that were counted in the end."""


def crashed_and_resumed(folder: Path, noise: float = 1.0) -> Story:
    """Saved after ten steps, lost after 24, resumed by a new process' means, with ``noise``."""
    released = []
    seed_everything()
    run, model = vector_run(plan_of(), WIDTH, ledger=folder / "a.ledger")
    for number, batch in enumerate(run.batches(ZEROS), 1):
        run.step(batch)
        released.append(model.weight.grad.numpy().copy())
        if number == SAVED:
            run.save(folder / "saved")
        if number == CRASHED:
            break
    del run
    seed_everything()
    again, model = vector_run(plan_of(noise), WIDTH, ledger=folder / "a.ledger")
    again.resume(folder / "saved")
    for batch in again.batches(ZEROS):
        again.step(batch)
        released.append(model.weight.grad.numpy().copy())
    return released, again.steps_taken


def resumed_from_memory(folder: Path, noise: float = 1.0) -> Story:
    """The count is in the checkpoint, and so is the state of the generator."""
    rng = np.random.RandomState(0)
    first = [rng.normal(size=WIDTH) for _ in range(CRASHED)]
    rng = np.random.RandomState(0)
    rng.normal(size=SAVED * WIDTH)
    again = [rng.normal(size=WIDTH) * noise for _ in range(STEPS - SAVED)]
    return first + again, STEPS


def in_a_folder(tell: Callable[[Path], Story]) -> Story:
    with tempfile.TemporaryDirectory() as name:
        return tell(Path(name))


@row(
    20,
    "steps that were lost in a crash are counted",
    ours={"PrivateRun": crashed_and_resumed},
    twins={"count in the checkpoint": resumed_from_memory},
)
def lost_steps(tell: Callable[[Path], Story]) -> str:
    released, counted = in_a_folder(tell)
    if counted < len(released):
        raise Broken(f"{len(released)} released, {counted} counted")
    return f"{len(released)} released, {counted} counted"


@row(
    21,
    "a run is not resumed with other noise",
    ours={"PrivateRun": partial(crashed_and_resumed, noise=0.3)},
    twins={"does not compare": partial(resumed_from_memory, noise=0.3)},
)
def other_noise(tell: Callable[[Path], Story]) -> str:
    try:
        in_a_folder(tell)
    except dp.DiscreetError:
        return "0.3 instead of 1 refused"
    raise Broken("0.3 instead of 1 accepted")


@row(
    22,
    "noise is fresh after seeds and resumption",
    ours={"PrivateRun": crashed_and_resumed},
    twins={"generator in the checkpoint": resumed_from_memory},
)
def fresh_noise(tell: Callable[[Path], Story]) -> str:
    released, _ = in_a_folder(tell)
    released += in_a_folder(tell)[0]
    repeated = len(released) - len({update.tobytes() for update in released})
    if repeated:
        raise Broken(f"{repeated} of {len(released)} noise vectors repeated")
    return f"0 of {len(released)} noise vectors repeated"


OURS = "import discreet as dp; draw = lambda: dp.gaussian_mechanism([0.0] * {size}, 1.0, 1.0, 1e-6).value.tobytes()"
WEAK = (
    "import numpy as np; seed = lambda: int.from_bytes(os.urandom(4), 'big') >> 1; "
    "draw = lambda: np.random.default_rng(seed()).normal(size={size}).tobytes()"
)
PROBE = """
import os, sys
real, asked = os.urandom, []
def entropy(flipped=None):
    def urandom(size):
        asked.append(size)
        data = bytearray([0x5A] * size)
        if flipped is not None and len(asked) == 1:
            data[flipped // 8 % size] ^= 1 << flipped % 8
        return bytes(data)
    return urandom
{subject}
def drawn(flipped=None):
    asked.clear(); os.urandom = entropy(flipped)
    found = draw(); os.urandom = real
    return found
draw()
plain = drawn()
bits = 8 * sum(asked)
matter = len({{drawn(bit) for bit in range(256)}} - {{plain}})
print(plain == drawn(), bits, matter, len({{draw() for _ in range(200)}}))
"""


def probe(subject: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(subject=subject)], capture_output=True, text=True, check=True
    )
    return done.stdout


@row(
    23,
    "noise is the operating system's entropy, 128 bits or more",
    ours={"few draws": OURS.format(size=20), "many draws": OURS.format(size=2000)},
    twins={"a seed of 31 bits": WEAK.format(size=20)},
)
def entropy(subject: str) -> str:
    """With the system's entropy held still the noise must repeat; of 256 bits flipped alone 128 must change it.

    Not all do where draws are made of the system's own words: a number near zero needs the last bits, others do not.
    """
    repeats, bits, matter, fresh = probe(subject).split()
    text = f"{bits} bits asked for, {matter} of the first 256 change the noise"
    if repeats != "True" or int(matter) < 128 or int(fresh) < 200:
        raise Broken(text)
    return text


class Trap:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


def checkpoint(folder: Path) -> Callable[[], object]:
    run, _ = vector_run(plan_of(), WIDTH, ledger=folder / "a.ledger")
    batches = run.batches(ZEROS)
    run.step(next(batches))
    run.save(folder / "saved")
    again, _ = vector_run(plan_of(), WIDTH, ledger=folder / "a.ledger")
    return lambda: again.resume(folder / "saved")


def model_folder(folder: Path) -> Callable[[], object]:
    from discreet.linear import PrivateLogisticRegression

    X, y = records()
    PrivateLogisticRegression(1.0, 1e-6, classes=(0, 1), bounds=(-3, 3)).fit(X, y).save(folder / "saved")
    return lambda: dp.load(folder / "saved")


def certificate(folder: Path) -> Callable[[], object]:
    (folder / "saved").mkdir()
    (folder / "saved" / "certificate.json").write_text("{}")
    return lambda: dp.Certificate.load(folder / "saved" / "certificate.json")


def pickled(folder: Path) -> Callable[[], object]:
    (folder / "saved").mkdir()
    torch.save({}, folder / "saved" / "model.pt")
    return lambda: torch.load(folder / "saved" / "model.pt", weights_only=False)


@row(
    27,
    "a crafted checkpoint runs no code",
    ours={"checkpoint": checkpoint, "model folder": model_folder, "certificate": certificate},
    twins={"torch.load": pickled},
)
def crafted_files(write: Callable[[Path], Callable[[], object]]) -> str:
    tried = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load, mark = write(folder), folder / "mark"
        files = [path for path in (folder / "saved").rglob("*") if path.is_file()]
        for path in files:
            honest = path.read_bytes()
            traps = [pickle.dumps(Trap(mark), protocol) for protocol in (0, 2, 5)]
            torch.save(Trap(mark), folder / "trap.pt")
            for trap in [*traps, (folder / "trap.pt").read_bytes()]:
                path.write_bytes(trap)
                try:
                    load()
                except Exception:  # refused, or not understood: all that counts is that nothing ran
                    tried += 1
                if mark.exists():
                    raise Broken(f"{path.name} ran code")
            path.write_bytes(honest)
    if not tried:
        raise Broken("nothing was refused")
    return f"{tried} files refused, nothing ran"


def told(*wish: object) -> dict[str, int]:
    """What happened to processes that raced or were killed; they are forked from one that is small."""
    script = Path(__file__).with_name("processes.py")
    command = [sys.executable, str(script), *map(str, wish)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@row(
    28,
    "one budget, four processes at once",
    ours={"Ledger": "ledger"},
    twins={"a file with a number": "memory"},
)
def race(kind: str) -> str:
    found = told("race", kind, 4)
    if found["granted"] > found["budget"]:
        raise Broken(f"{found['granted']} releases granted of {found['budget']}")
    if found["granted"] < found["budget"]:
        raise Broken(f"only {found['granted']} of {found['budget']} releases granted")
    return f"{found['granted']} of {found['budget']} releases granted, {found['asked']} asked for"


KILLS = 60


@row(
    29,
    "kill -9: nothing released uncounted, no noise twice",
    ours={"Ledger": "ledger"},
    twins={"count in memory": "memory"},
)
def kills(kind: str) -> str:
    found = told("kill", kind, KILLS)
    text = f"{found['kills']} kills, {found['released']} released, {found['counted']} counted, "
    text += f"{found['repeated']} noise twice"
    if found["released"] == 0 or found["uncounted"] or found["repeated"]:
        raise Broken(f"{text}, {found['uncounted']} uncounted")
    return f"{text} (make torture: 1500)"
