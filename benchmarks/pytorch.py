"""A private training step beside a plain one and those of Opacus: time and memory over those of plain PyTorch.

A step is what a user pays for: a batch of Poisson size, gradients, clipping, noise and ``torch.optim.SGD``. Ours
is ``PrivateRun.step``, with a ledger in memory, noise from the cryptographic stream, and all that it checks in
every step. All contenders get the same batches, each takes turns with the plain step, and a cell is the median of
the ratios to the plain step on the same batch; behind ours are the quartiles. Peers, whose limits are far away, take
a third of the rounds. The first 20 steps of a run compare eight examples each with themselves alone, later steps one;
what is timed are later steps. Memory is by how much a process of its own grows at most in the steps after the first;
behind the plus sign that of the first one, in which we check model and losses.

Run with ``make bench-torch``; names of workloads as arguments choose some, ``--quick`` takes about five minutes. Each
number is printed when it is found, and all of them in a table at the end.
"""

import argparse
import ctypes
import gc
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from discreet import Recipe
from discreet.pytorch import PrivateRun
from discreet.pytorch.checks.single_examples import FIRST_STEPS
from timing import Targets, table

CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
VOCABULARY, TIME = 4096, 128


class Block(nn.Module):
    def __init__(self, width, heads, linear):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LoRA(nn.Module):
    def __init__(self, into, out, rank=8):
        super().__init__()
        self.base = nn.Linear(into, out).requires_grad_(False)
        self.a, self.b = nn.Linear(into, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class GPT(nn.Module):
    def __init__(self, tied=False, lora=False, width=256):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TIME, width)
        linear = LoRA if lora else nn.Linear
        self.blocks = nn.Sequential(*(Block(width, 4, linear) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight
        if lora:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".a." in name or ".b." in name)

    def forward(self, x):
        places = torch.arange(x.shape[1]).expand(x.shape).contiguous()  # as Opacus needs it
        return self.head(self.norm(self.blocks(self.words(x) + self.places(places))))


class Residual(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.GroupNorm(8, out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(8, out)
        same = stride == 1 and into == out
        self.short = nn.Identity() if same else nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class LSTMClassifier(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(VOCABULARY, 100), layer, nn.Linear(128, 2)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn():
    first = [nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


def resnet():
    start = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(8, 32), nn.ReLU()]
    blocks = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def tiny():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def lstm(private_layer=False):
    if private_layer:
        from opacus.layers import DPLSTM

        return LSTMClassifier(DPLSTM(100, 128, batch_first=True))
    return LSTMClassifier(nn.LSTM(100, 128, batch_first=True))


# model, expected batch size, shape of an example or None for words, classes, small physical batch, rounds
WORKLOADS = {
    "MLP": (mlp, 512, (784,), 10, 64, 75),
    "CNN": (cnn, 512, (1, 28, 28), 10, 64, 33),
    "ResNet": (resnet, 64, (3, 32, 32), 10, 16, 21),
    "GPT": (GPT, 32, None, None, 4, 11),
    "GPT tied": (lambda: GPT(tied=True), 32, None, None, 4, 11),
    "GPT LoRA": (lambda: GPT(lora=True), 32, None, None, 4, 11),
    "LSTM": (lstm, 64, None, 2, 16, 33),
    "tiny": (tiny, 64, (8,), 2, None, 303),
}
# time and memory over plain: "must be at most"
TIMES = {
    "MLP": 1.15,
    "CNN": 1.20,
    "ResNet": 1.18,
    "GPT": 1.12,
    "GPT tied": 1.12,
    "GPT LoRA": 1.08,
    "LSTM": 1.30,
}
MEMORY = {"MLP": 2.0, "CNN": 1.1, "ResNet": 1.6, "GPT": 1.1, "GPT tied": 1.1, "GPT LoRA": 1.05, "LSTM": 1.3}


def losses(model, batch):
    x, y = batch
    out = model(x)
    if out.ndim == 2:
        return F.cross_entropy(out, y, reduction="none")
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def batches(name, count, seed=0):
    """Batches of Poisson size, drawn from nothing: the time does not depend on the values."""
    _, expected, shape, classes, _, _ = WORKLOADS[name]
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        size = int(rng.poisson(expected))
        if shape is not None:
            yield torch.randn(size, *shape, generator=generator), torch.randint(0, classes, (size,))
        else:
            words = (torch.rand(size, TIME + 1, generator=generator) ** 3 * VOCABULARY).long()
            labels = words[:, 1:] if classes is None else torch.randint(0, classes, (size,))
            yield words[:, :-1].contiguous(), labels.contiguous()


# A contender is a function from a batch to a step that is ready to be timed.


def plain(name):
    model = WORKLOADS[name][0]()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

    def step(batch):
        optimizer.zero_grad()
        losses(model, batch).mean().backward()
        optimizer.step()

    return lambda batch: partial(step, batch)


def ours(name, physical=None):
    make, expected, *_ = WORKLOADS[name]
    model = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    recipe = Recipe(records=100 * expected, batch_size=expected, steps=1000, clip_norm=CLIP)
    plan = recipe.with_noise(NOISE, delta=1e-6)
    run = PrivateRun(plan, model, optimizer, losses, physical_batch_size=physical)
    run._spot_check.steps = run._singles.steps = FIRST_STEPS

    def ready(batch):
        """The batch of all contenders, as if this run had drawn it."""
        return partial(run.step, run._turns.batch_of((run.steps_taken + 1, batch)))

    return ready


def opacus_hooks(name):
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(lstm(private_layer=True) if name == "LSTM" else WORKLOADS[name][0]())
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=WORKLOADS[name][1],
    )

    def step(batch):
        optimizer.zero_grad()
        losses(model, batch).mean().backward()
        optimizer.step()

    return lambda batch: partial(step, batch)


def opacus_ghost(name):
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    inner = lstm(private_layer=True) if name == "LSTM" else WORKLOADS[name][0]()
    model = GradSampleModuleFastGradientClipping(inner, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=WORKLOADS[name][1],
    )

    def step(batch):
        optimizer.zero_grad()
        DPTensorFastGradientClipping(model, optimizer, losses(model, batch), "mean").backward()
        optimizer.step()

    return lambda batch: partial(step, batch)


def small_batches(name):
    physical = WORKLOADS[name][4]
    if physical is None:
        raise NotImplementedError
    return ours(name, physical)


CONTENDERS = {
    "plain": plain,
    "ours": ours,
    "ours, small parts": small_batches,
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
}


def timed(name, makers, scale):
    """Milliseconds of the plain step, the median ratios to it, the quartiles of ours, and our extra milliseconds.

    Every contender takes turns with the plain step alone, as one that needs much memory would slow down whoever
    comes after it. A contender that cannot is left out.
    """
    rounds = max(5, math.ceil(WORKLOADS[name][-1] * scale))
    given = list(batches(name, rounds + 1))
    base, ratios, quartiles, extra = [], {}, (math.nan, math.nan), math.nan
    for label in [label for label in makers if label != "plain"]:
        enough = given if label == "ours" else given[: 1 + max(2, rounds // 3)]
        try:
            pairs = paired(plain(name), makers[label](name), enough)
        except Exception as error:  # what a tool raises is its answer
            say(name, label, f"{type(error).__name__}: {(str(error) or '-').splitlines()[0][:90]}")
            continue
        found = [theirs / plainly for plainly, theirs in pairs]
        ratios[label] = statistics.median(found)
        say(name, label, f"{ratios[label]:.2f} times the time of the plain step, {len(found)} rounds")
        base += [plainly for plainly, _ in pairs]
        if label == "ours":
            quartiles = statistics.quantiles(found, n=4)[::2]
            extra = statistics.median(theirs - plainly for plainly, theirs in pairs)
    return 1e3 * statistics.median(base), ratios, quartiles, 1e3 * extra


def say(name, label, found):
    """At once, as a whole table takes long."""
    print(f"{name}, {label}: {found}", flush=True)


def paired(plain_step, other_step, given):
    """The times of both for each batch; they take turns in going first.

    Before, batches of every order of magnitude warm up twice: ours checks model and losses at the first of each and
    once more after a step, which takes as long as a few steps, two or three times in a run.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for batch in 2 * [*{len(batch[0]).bit_length(): batch for batch in given}.values()]:
        plain_step(batch)()
        other_step(batch)()
    pairs = []
    for turn, batch in enumerate(given[1:]):
        seen = [0.0, 0.0]
        for place in (0, 1) if turn % 2 else (1, 0):
            step = (plain_step, other_step)[place](batch)
            start = clock()
            step()
            seen[place] = clock() - start
        pairs.append(seen)
    return pairs


def grown(name, label):
    """Megabytes by which this process is larger than before, at most: in later steps, and in the first ones.

    A small batch loads everything; its gradients are dropped. The first two steps with a whole batch hold our checks
    of model and losses, with the weights as they were and after a step; then come two more.
    """
    ready = CONTENDERS[label](name)
    (batch,) = batches(name, 1, seed=3)
    ready(tuple(value[:2] for value in batch))()
    for value in gc.get_objects():
        if isinstance(value, nn.Parameter):
            value.grad = None
    _release()
    before = _kilobytes("VmRSS")
    peaks = []
    for _ in range(2):
        _release()
        for _ in range(2):
            ready(batch)()
        peaks.append((_kilobytes("VmHWM") - before) / 1024)
    return peaks[1], peaks[0]


def _release():
    """What one step leaves behind must not hide what the next one needs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # restart the high-water mark


def _kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def memory(name, label):
    """The same in a process of its own; None if the contender cannot.

    Every array of more than 64 KB is asked from the system and given back at once, so that the size of the process
    is that of the arrays alive, and not that of the holes between them.
    """
    command = [sys.executable, __file__, "--threads", "1", "--grow", name, label]
    settings = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_MMAP_MAX_": "1000000"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        return None
    later, first = map(float, done.stdout.split()[-2:])
    say(name, label, f"{later:.0f} MB, {first:.0f} MB in the first two steps")
    return later, first


def opacus_installed():
    try:
        import opacus  # noqa: F401
    except ImportError:
        print("Opacus is not installed: its columns are left out (pip install opacus).")
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=float, default=1.0, help="more or fewer rounds, as a factor")
    parser.add_argument("--threads", type=int, default=2, help="1 measures CPU time")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--quick", action="store_true", help="time only, fewer rounds, one of the GPTs")
    parser.add_argument("--grow", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.grow:
        print(*grown(*options.grow))
        return
    makers = dict(CONTENDERS)
    if options.quick:
        options.rounds, options.no_memory = 0.3 * options.rounds, True
        options.workloads = [name for name in options.workloads if not name.startswith("GPT ")]
        makers.pop("ours, small parts")
    if not opacus_installed():
        makers = {label: make for label, make in makers.items() if not label.startswith("Opacus")}
    heads, targets, rows = [label for label in makers if label != "plain"], Targets(), []
    for name in options.workloads:
        row = [name]
        row += (
            ["-"] * (1 + len(heads)) if options.no_time else times_of(name, makers, options.rounds, targets)
        )
        measured = name in MEMORY and not options.no_memory
        row += sizes_of(name, makers, targets) if measured else ["-"] * (1 + len(heads))
        rows.append(row)
    unit = "CPU ms, 1 thread" if options.threads == 1 else f"ms, {options.threads} threads"
    columns = ("workload", f"plain {unit}", *(f"time: {label}" for label in heads))
    columns += ("plain MB", *(f"memory: {label}" for label in heads))
    table("Time and memory over those of plain PyTorch; later steps + first two", columns, rows)
    targets.print()


def times_of(name, makers, rounds, targets):
    base, ratios, quartiles, extra = timed(name, makers, rounds)
    if name in TIMES:
        targets.limit(f"{name}: time over plain", TIMES[name], {"ours": ratios["ours"]})
    if name == "tiny":
        targets.limit("tiny: extra milliseconds a layer", 0.12, {"ours": extra / 3})
    peers = {label: ratio for label, ratio in ratios.items() if label.startswith("Opacus")}
    if peers:
        slower = {label: ratio / ratios["ours"] for label, ratio in peers.items()}
        targets.limit(f"{name}: time of Opacus over ours", 1.0, slower, at_least=True)
    shown = cells(ratios, makers)
    shown[0] += " ({:.2f}-{:.2f})".format(*quartiles)  # ours comes first
    return [f"{base:.1f}", *shown]


def sizes_of(name, makers, targets):
    """Of later steps and of the first step."""
    found = {label: sizes for label in makers if (sizes := memory(name, label)) is not None}
    over, over_first = (
        {label: sizes[which] / found["plain"][which] for label, sizes in found.items()} for which in (0, 1)
    )
    targets.limit(f"{name}: memory over plain", MEMORY[name], {"ours": over["ours"]})
    if name in ("ResNet", "GPT", "GPT tied", "GPT LoRA"):
        small = {"ours, small parts": over["ours, small parts"]}
        targets.limit(f"{name}: memory over plain, small parts", 0.5, small)
    later, first = cells(over, makers), cells(over_first, makers)
    return [
        f"{found['plain'][0]:.0f}",
        *(f"{one} + {other}" for one, other in zip(later, first, strict=True)),
    ]


def cells(ratios, makers):
    return [f"{ratios[label]:.2f}" if label in ratios else "-" for label in makers if label != "plain"]


if __name__ == "__main__":
    main()
