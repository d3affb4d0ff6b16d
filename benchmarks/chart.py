"""The README's chart: how good models are against epsilon on real tables, ours and the peers on the same records.

Discreet's linear and additive models, DP-EBM, diffprivlib and Opacus with its defaults: on Adult with its official
test set, on Credit and on breast cancer by three random divisions; delta 1e-5 (diffprivlib has none), means over so
many fits. Run with

    make bench-chart DATA=DIR
    python benchmarks/chart.py --data DIR --peer dp-ebm=PYTHON --peer diffprivlib=PYTHON --peer opacus=PYTHON

It writes what it measured to docs/images/accuracy.json and draws docs/images/accuracy.svg; ``--draw`` draws only, and
``--tables Credit`` measures one table and keeps the others.
"""

import argparse
import json
import platform
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
IMAGES = Path(__file__).parent.parent / "docs" / "images"
INK = "var(--figure-5, #5c6475)"
TABLES = {  # score, how many divisions, and the title
    "Adult": ("accuracy", 1, "Adult, 32 561 records: accuracy"),
    "Credit": ("AUC", 3, "Credit, 24 000 records: AUC"),
    "breast_cancer": ("accuracy", 3, "Breast cancer, 455 records: acc."),
}
STYLES = {  # colour (those of the site's figures), width
    "Discreet, curves": ("var(--figure-1, #1f5fbf)", 3.0),
    "Discreet, lines": ("#5b8fe0", 3.0),
    "dp-ebm": ("var(--figure-2, #b4541a)", 1.8),
    "opacus": ("var(--figure-4, #7b3fa0)", 1.8),
    "diffprivlib": ("var(--figure-3, #14683f)", 1.8),
    "without privacy": (INK, 1.2),
}
DARK = (
    "--figure-1: #7fb2ff; --figure-2: #f0a26b; --figure-3: #63cf97; --figure-4: #cf9cf0; --figure-5: #a2aabb"
)
NAMES = {"dp-ebm": "DP-EBM", "opacus": "Opacus, defaults", "without privacy": "no privacy, linear"}


def ours(table, fits):
    import additive
    import linear

    times = 100 if table.score == "AUC" else 1  # all in per cent
    for name, fit in (
        ("Discreet, lines", lambda epsilon, seed: linear.private(table, epsilon, seed)[0]),
        ("Discreet, curves", lambda epsilon, seed: additive.additive(table, epsilon, seed, ())[0]),
    ):
        yield (
            name,
            {e: times * np.mean([fit(e, seed) for seed in range(fits)]) for e in EPSILONS},
        )
    alone = times * np.mean([linear.plain(table, seed) for seed in range(1 if table.train else fits)])
    yield "without privacy", dict.fromkeys(EPSILONS, alone)


def peer(table, name, python, divisions, fits):
    """A peer in its own environment, on the same records."""
    import linear

    groups, found = [table.columns.numerics, *table.columns.groups], {epsilon: [] for epsilon in EPSILONS}
    for division in range(divisions):
        x, y, test, truth = linear.split(table, division)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "table.npz"
            np.savez(file, x_train=x, y_train=y, x_test=test, y_test=truth, groups=groups)
            words = [python, str(Path(__file__).with_name("linear_peers.py")), str(file), "--only", name]
            words += ["--delta", str(linear.DELTA), "--seeds", str(max(1, fits // divisions))]
            words += ["--epsilon", *map(str, EPSILONS)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            for scores, line in zip(found.values(), done.stdout.splitlines(), strict=True):
                scores.append(100 * json.loads(line)[table.score])
    return {epsilon: np.mean(scores) for epsilon, scores in found.items()}


WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 330, 330, 84, 46, 40, 12


def draw(measured):
    """Panels side by side under one legend, readable on light and dark pages."""
    panels = [(TABLES[name][2], lines) for name, lines in measured["tables"].items()]
    width = max(3, len(panels)) * WIDTH  # room for the legend
    title = "How good private models are, by epsilon (%)"
    parts = [
        '<svg class="discreet-figure wide" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="system-ui, sans-serif" font-size="14">',
        f"<style>@media (prefers-color-scheme: dark) {{:root.discreet-figure{{{DARK}}}}}</style>",
        f"<title>{title}</title>",
        *legend(panels),
    ]
    for place, (name, lines) in enumerate(panels):
        parts.append(f'<g transform="translate({place * WIDTH} 0)">{panel(name, lines)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def legend(panels):
    shown = [name for name in STYLES if any(name in lines for _, lines in panels)]
    x = LEFT
    for name in shown:
        colour, thick = STYLES[name]
        word = NAMES.get(name, name)
        dash = ' stroke-dasharray="5 4"' if name == "without privacy" else ""
        yield f'<path d="M{x:.0f} 18h22" style="stroke: {colour}" stroke-width="{thick:g}"{dash}/>'
        weight = "600" if name.startswith("Discreet") else "400"
        yield f'<text x="{x + 28:.0f}" y="23" style="fill: {colour}" font-weight="{weight}">{word}</text>'
        x += 62 + 7.4 * len(word)


def panel(title, lines):
    low = min(min(line.values()) for line in lines.values())
    high = max(max(line.values()) for line in lines.values())
    step = next(step for step in (1, 2, 5, 10, 20) if (high - low) / step <= 7)
    low, high = step * np.floor(low / step), step * np.ceil(high / step)
    first, last = np.log(EPSILONS[0]), np.log(EPSILONS[-1])

    def x(epsilon):
        return LEFT + (np.log(epsilon) - first) / (last - first) * (WIDTH - LEFT - GAP)

    def y(score):
        return HEIGHT - BOTTOM - (score - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<text x="{LEFT}" y="{TOP - 26}" font-weight="600" font-size="15" style="fill: {INK}">{title}</text>'
    ]
    for value in np.arange(low, high + step / 2, step):
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - GAP}" style="stroke: {INK}" stroke-opacity="0.25"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 5:.1f}" text-anchor="end" style="fill: {INK}">{value:.0f}</text>'
        )
    for epsilon in EPSILONS:
        place = f'x="{x(epsilon):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
        parts.append(f'<text {place} style="fill: {INK}">{epsilon:g}</text>')
    middle = (LEFT + WIDTH - GAP) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle" style="fill: {INK}">epsilon</text>'
    )
    for name, (colour, thick) in STYLES.items():
        if name in lines:
            points = [f"{x(e):.1f} {y(lines[name][f'{e:g}']):.1f}" for e in EPSILONS]
            dash = ' stroke-dasharray="5 4"' if name == "without privacy" else ""
            stroke = f'style="stroke: {colour}" stroke-width="{thick:g}"{dash}'
            parts.append(f'<path d="M{"L".join(points)}" fill="none" {stroke}/>')
    return "".join(parts)


def rounded(line):
    return {f"{epsilon:g}": round(float(value), 2) for epsilon, value in line.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--fits", type=int, default=5)
    parser.add_argument("--tables", default=",".join(TABLES), help="which tables, with commas between them")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    arguments = parser.parse_args()
    file = IMAGES / "accuracy.json"
    measured = json.loads(file.read_text()) if file.exists() else {"tables": {}}
    if not arguments.draw:
        import linear_data

        measured |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "fits": arguments.fits}
        measured |= {"machine": f"{platform.machine()}, {platform.system()}"}
        for name in arguments.tables.split(","):
            score, divisions, _ = TABLES[name]
            makers = {"Adult": linear_data.adult, "Credit": linear_data.credit}
            made = makers[name](arguments.data) if name in makers else linear_data.breast_cancer()
            table, lines = made._replace(score=score), measured["tables"].setdefault(name, {})
            for told, line in ours(table, arguments.fits):
                lines[told] = rounded(line)
            for other, python in (text.split("=", 1) for text in arguments.peer):
                lines[other] = rounded(peer(table, other, python, divisions, min(3, arguments.fits)))
            file.write_text(json.dumps(measured, indent=2) + "\n")
    (IMAGES / "accuracy.svg").write_text(draw(measured))


if __name__ == "__main__":
    main()
