"""Does the clip hold, and does the check refuse the right ones? Foot-guns, honest and random models, and the cost.

    python benchmarks/check.py [--quick] [--only foot-guns bank seeds random check memory speed]

The judges are those of the tests: they run what a user runs, with a record and without it, and know nothing of how
the engine works.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter, defaultdict

import torch
import torch.nn.functional as F
from torch import nn

import pytorch as steps
from check_models import everything, honest
from discreet.pytorch import check
from support import footguns_loops, random_models
from support.clip_judge import LIMIT, REFUSALS, exact
from timing import Targets, table

MODELS, BATCHES = 400, 27  # of the random models: 10 800 batches
SEEDS = 200
HOLES = ("other", "1 rows", "2 checkpoints", "3 collate", "4 first weights", "5 cancellation", "6 chance")


def foot_guns(targets: Targets, part: int) -> None:
    """Every foot-gun: refused, named in "not covered", or harmless."""
    found = footguns_loops.FOOTGUNS
    kinds: dict[int, Counter[str]] = defaultdict(Counter)
    worst: dict[int, float] = defaultdict(float)
    bad = []
    for name, one in list(found.items())[::part]:
        verdict = one.attempt()
        kinds[one.hole][verdict.kind] += 1
        worst[one.hole] = max(worst[one.hole], verdict.contribution if verdict.kind != "named" else 0.0)
        if not verdict.passed:
            bad.append(f"{name}: {verdict.detail}")
    heads = ("refused", "named", "harmless", "BROKEN", "CRASHED")
    rows = [
        [HOLES[hole], *(str(kinds[hole][head]) for head in heads), f"{worst[hole]:.5g}"]
        for hole in sorted(kinds)
    ]
    table("Foot-guns", ("hole", *heads, "most C"), rows)
    print(*bad, sep="\n")
    total = sum(sum(row.values()) for row in kinds.values())
    targets.limit(
        "foot-guns refused, named or harmless", 0.95, {f"of {total}": 1 - len(bad) / total}, at_least=True
    )


def bank(targets: Targets, part: int) -> None:
    """Every model of the banks: accepted, and exact."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    bad = []
    for origin, name, build in list(everything())[::part]:
        try:
            made = build()
        except Exception as error:  # a package that has it no longer, or not yet
            kinds[origin]["not built"] += 1
            print(f"{origin}, {name}: not built ({type(error).__name__}: {str(error).splitlines()[0][:70]})")
            continue
        verdict = exact(*made)
        kinds[origin]["exact" if verdict.kind == "harmless" else verdict.kind] += 1
        worst[origin] = max(worst[origin], verdict.contribution)
        if verdict.kind != "harmless":
            bad.append(f"{origin}, {name}: {verdict.kind}: {verdict.detail}")
    heads = ("exact", "refused", "BROKEN", "CRASHED", "not built")
    rows = [
        [origin, *(str(row[head]) for head in heads), f"{worst[origin]:.6f}"] for origin, row in kinds.items()
    ]
    table("Bank of models", ("from", *heads, "most C"), rows)
    print(*bad, sep="\n")
    tried = sum(sum(row.values()) - row["not built"] for row in kinds.values())
    targets.limit("models in the bank", 150 // part, {"tried": tried}, at_least=True)
    targets.none("models refused or wrong", bad)


def seeds(targets: Targets, part: int) -> None:
    """Honest models with other weights and batches: nobody may be refused."""
    refused, passed = [], Counter()
    for seed in range(0, SEEDS, part):
        name, made = honest(seed)
        try:
            check(*made)
            passed[name] += 1
        except REFUSALS as refusal:
            refused.append(f"{name} (seed {seed}): {refusal}")
        except Exception as error:
            refused.append(f"{name} (seed {seed}): {type(error).__name__}: {error}")
    table(
        "Honest models under other seeds",
        ("model", "accepted"),
        [[name, str(n)] for name, n in passed.items()],
    )
    print(*refused, sep="\n")
    targets.none(f"false refusals in {SEEDS // part} seeds", refused)


def random_batches(targets: Targets, part: int) -> None:
    """Random models with adversarial batches; then random models that mix, which must be refused."""
    rows = []
    for title, models, mixing in (("honest", MODELS, False), ("mixing", MODELS // 6, True)):
        tally = random_models.tried(range(models // part), BATCHES, mixing=mixing)
        rows.append([title, str(tally.models), str(tally.refused), str(tally.batches), f"{tally.worst:.6f}"])
        print(*tally.problems, sep="\n")
        targets.none(f"random models, {title}: problems", tally.problems)
        if not mixing:
            targets.limit("adversarial batches", 10_000 // part, {"tried": tally.batches}, at_least=True)
            targets.limit("most that a record moved, in clip norms", LIMIT, {tally.where[:30]: tally.worst})
    table("Random models", ("models", "made", "refused", "batches", "most C"), rows)


def cost_of_check(targets: Targets, part: int) -> None:
    """CPU seconds of one check of models of 10 million parameters."""

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)
            self.words, self.body = nn.Embedding(8000, 256), nn.TransformerEncoder(layer, 8)
            self.head = nn.Linear(256, 8000, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.words(x)).mean(1))

    wide = nn.Sequential(
        nn.Linear(784, 2560), nn.ReLU(), nn.Linear(2560, 3000), nn.ReLU(), nn.Linear(3000, 10)
    )
    subjects = {
        "MLP": (wide, torch.randn(16, 784), 10),
        "transformer": (Language(), torch.randint(0, 8000, (16, 32)), 8000),
    }
    rows, spent = [], {}
    for name, (model, x, classes) in subjects.items():
        size = sum(value.numel() for value in model.parameters())
        start = time.process_time()
        check(
            model,
            lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"),
            (x, torch.arange(16) % classes),
        )
        spent[name] = time.process_time() - start
        rows.append([name, f"{size / 1e6:.1f}", f"{spent[name]:.2f}"])
    table("The check", ("model", "million parameters", "CPU s"), rows)
    targets.limit("CPU seconds of the check", 5.0, spent)


def first_memory(targets: Targets, part: int) -> None:
    """Memory of the first step, with the check, in small parts, over that of a plain step."""
    rows, over = [], {}
    for name in ("CNN", "ResNet", "GPT", "LSTM")[: 4 if part == 1 else 1]:
        plainly, ours = steps.memory(name, "plain"), steps.memory(name, "ours, small parts")
        if plainly and ours:
            over[name] = ours[1] / plainly[1]
            rows.append([name, f"{plainly[1]:.0f}", f"{over[name]:.2f}"])
    table("Memory of the first step in small parts", ("workload", "plain MB", "ours / plain"), rows)
    targets.limit("first step, small parts: memory over plain", 1.5, over)


def speed(targets: Targets, part: int) -> None:
    """Time of a step over that of a plain one."""
    rows = []
    makers = {label: steps.CONTENDERS[label] for label in ("plain", "ours")}
    for name in ("MLP", "CNN", "GPT", "LSTM")[: 4 if part == 1 else 2]:
        base, ratios, _ = steps.timed(name, makers, 0.5 / part)
        rows.append([name, f"{base:.1f}", f"{ratios['ours']:.2f}"])
        targets.limit(f"{name}: time over plain", steps.TIMES[name], {"ours": ratios["ours"]})
    table("A step", ("workload", "plain ms", "ours / plain"), rows)


SECTIONS = {
    "foot-guns": foot_guns,
    "bank": bank,
    "seeds": seeds,
    "random": random_batches,
    "check": cost_of_check,
    "memory": first_memory,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    targets, spent = Targets(), []
    for name in options.only:
        start = time.perf_counter()
        SECTIONS[name](targets, 10 if options.quick else 1)
        spent.append([name, f"{time.perf_counter() - start:.0f}"])
    table("Seconds", ("section", "s"), spent)
    targets.print()


if __name__ == "__main__":
    main()
