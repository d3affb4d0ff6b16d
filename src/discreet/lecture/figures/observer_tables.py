"""Several data holders: what secure sums save, and what the coordinator of SGD1 really learns."""

from __future__ import annotations

from discreet.guarantee import Budget
from discreet.lecture.figures.canvas import Figure, Line, Panel
from discreet.parties.arrangement import Arrangement
from discreet.parties.excess_risk import predicted
from discreet.parties.notes import notes_noise
from discreet.parties.who_sees.observers import noise_for
from discreet.parties.who_sees.observers import observers as table_of

_RECORDS, _ROUNDS, _DIMENSION, _CONVEXITY = 6000, 1000, 200, 0.1


def parties_risk() -> Figure:
    """The excess risk of SGD2 as the same records are held by more and more parties."""
    counts = (2, 3, 5, 10, 20, 30, 50)
    budget = Budget(1.0, 1e-6, "replace-one")
    lines = []
    for label, aggregation, against in (
        ("every message is seen", "plain", "coordinator"),
        ("only sums are seen", "secure", "coordinator"),
    ):
        risks = []
        for count in counts:
            shared = Arrangement("sgd2", _parties(count, _RECORDS), rounds=_ROUNDS, aggregation=aggregation)
            arranged = shared.with_noise(noise_for(shared, budget, against=against))
            found = predicted(arranged, 1.0, _DIMENSION, diameter=2.0, convexity=_CONVEXITY)
            assert found.strongly_convex_average is not None
            risks.append(found.strongly_convex_average)
        lines.append(Line(label, counts, risks))
    return Figure(
        "What secure sums save",
        f"Bound on the excess of the mean loss of SGD2 against the coordinator at epsilon 1: {_RECORDS} records, "
        f"{_ROUNDS} rounds, {_DIMENSION} parameters. When every message is seen, each carries all of the noise, "
        "and m parties bring m times its variance; when only the sum is seen, they share it.",
        (Panel("", "parties", "excess risk per record, at most", tuple(lines), log_x=True, log_y=True),),
    )


def observers() -> Figure:
    """What each observer of SGD1 learns at the notes' noise, which claims 0.9 for everybody."""
    sizes = (50, 100, 200, 500, 1000)
    shown = ("messages", "another party", "traffic", "coordinator")
    found: dict[str, list[float]] = {name: [] for name in shown}
    for records in sizes:
        budget = Budget(0.9, 0.1 / records**3, "replace-one")
        shared = Arrangement("sgd1", _parties(10, records))
        table = table_of(shared.with_noise(notes_noise(shared, budget)), budget.delta)
        for name in shown:
            guarantee = table[name].guarantee
            assert guarantee is not None
            found[name].append(guarantee.epsilon.upper)
    lines = [Line("claimed for everybody", sizes, [0.9] * len(sizes), "dashed")]
    lines += [Line(name, sizes, found[name]) for name in shown]
    return Figure(
        "Who learns what from SGD1",
        "Ten parties, the noise of the notes for epsilon 0.9, delta 1/(10 n^3). The claim is far too careful about "
        "those who do not know whose record was used, and false for the coordinator, who drew it.",
        (Panel("", "records", "epsilon", tuple(lines), log_x=True, log_y=True),),
    )


def _parties(count: int, records: int) -> dict[str, int]:
    return {f"party-{index + 1}": records // count for index in range(count)}
