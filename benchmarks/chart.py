"""The README's chart: accuracy against epsilon on a real table, ours and the peers on the same records.

Discreet's linear and additive models, DP-EBM, diffprivlib and Opacus with its defaults, on Adult with its official
test set; delta 1e-5 (diffprivlib has none), means over so many noise seeds. Run with

    make bench-chart DATA=DIR
    python benchmarks/chart.py --data DIR --peer dp-ebm=PYTHON --peer diffprivlib=PYTHON --peer opacus=PYTHON

It writes what it measured to docs/images/accuracy.json and draws docs/images/accuracy.svg; ``--draw`` draws only.
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
STYLES = {  # colour, width
    "Discreet, curves": ("#1f5fbf", 3.0),
    "Discreet, lines": ("#5b8fe0", 3.0),
    "dp-ebm": ("#b4541a", 1.8),
    "opacus": ("#7b3fa0", 1.8),
    "diffprivlib": ("#14683f", 1.8),
    "without privacy": ("#7c8494", 1.2),
}
NAMES = {"dp-ebm": "DP-EBM", "opacus": "Opacus, defaults", "without privacy": "no privacy, linear"}


def ours(table, fits):
    import additive
    import linear

    for name, fit in (
        ("Discreet, lines", lambda epsilon, seed: linear.private(table, epsilon, seed)[0]),
        ("Discreet, curves", lambda epsilon, seed: additive.additive(table, epsilon, seed, ())[0]),
    ):
        yield name, {epsilon: np.mean([fit(epsilon, seed) for seed in range(fits)]) for epsilon in EPSILONS}
    yield "without privacy", dict.fromkeys(EPSILONS, linear.plain(table, 0))


def peer(table, name, python, fits):
    """A peer in its own environment, on the same records."""
    import linear

    x, y, test, truth = linear.split(table, 0)
    groups = [table.columns.numerics, *table.columns.groups]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.npz"
        np.savez(file, x_train=x, y_train=y, x_test=test, y_test=truth, groups=groups)
        for epsilon in EPSILONS:
            words = [python, str(Path(__file__).with_name("linear_peers.py")), str(file), "--only", name]
            words += ["--epsilon", str(epsilon), "--delta", str(linear.DELTA), "--seeds", str(fits)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found[epsilon] = 100 * json.loads(done.stdout.splitlines()[-1])["accuracy"]
    return found


def draw(measured):
    """The chart, readable on light and dark pages."""
    width, height, left, right, top, bottom = 760, 380, 56, 190, 40, 52
    lines = measured["lines"]
    low = 2 * np.floor(min(min(line.values()) for line in lines.values()) / 2)
    high = np.ceil(max(max(line.values()) for line in lines.values()))
    across = [np.log(epsilon) for epsilon in EPSILONS]

    def x(epsilon):
        return left + (np.log(epsilon) - across[0]) / (across[-1] - across[0]) * (width - left - right)

    def y(accuracy):
        return height - bottom - (accuracy - low) / (high - low) * (height - top - bottom)

    ink = "#6b7280"  # legible on white and on black
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="14">',
        f"<title>{measured['title']}</title>",
        f'<text x="{left}" y="22" font-weight="600" font-size="15" fill="{ink}">{measured["title"]}</text>',
    ]
    for value in np.arange(low, high + 0.1, 2):
        parts.append(
            f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="{ink}" stroke-opacity="0.25"/>'
        )
        parts.append(
            f'<text x="{left - 8}" y="{y(value) + 5:.1f}" text-anchor="end" fill="{ink}">{value:.0f}</text>'
        )
    for epsilon in EPSILONS:
        place = f'x="{x(epsilon):.1f}" y="{height - bottom + 22}" text-anchor="middle"'
        parts.append(f'<text {place} fill="{ink}">{epsilon:g}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle" fill="{ink}">epsilon</text>')
    places = labels_at({name: y(line[f"{EPSILONS[-1]:g}"]) for name, line in lines.items()})
    for name, (colour, thick) in STYLES.items():
        if name not in lines:
            continue
        points = [f"{x(e):.1f} {y(lines[name][f'{e:g}']):.1f}" for e in EPSILONS]
        dash = ' stroke-dasharray="5 4"' if name == "without privacy" else ""
        parts.append(
            f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="{thick}"{dash}/>'
        )
        weight = "600" if name.startswith("Discreet") else "400"
        word = f'<text x="{width - right + 10}" y="{places[name] + 5:.1f}" fill="{colour}" font-weight="{weight}">'
        parts.append(f"{word}{NAMES.get(name, name)}</text>")
    return "\n".join([*parts, "</svg>\n"])


def labels_at(wanted):
    """Heights for the names at the ends of the lines, none above another."""
    places, last = {}, -np.inf
    for name, height in sorted(wanted.items(), key=lambda pair: pair[1]):
        last = places[name] = max(height, last + 18)
    return places


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--fits", type=int, default=5)
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    arguments = parser.parse_args()
    file = IMAGES / "accuracy.json"
    if not arguments.draw:
        import linear_data

        table = linear_data.adult(arguments.data)
        measured = {
            "title": "Adult: accuracy on the test set, %",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        measured |= {"machine": f"{platform.machine()}, {platform.system()}", "fits": arguments.fits}
        lines = dict(ours(table, arguments.fits))
        for name, python in (text.split("=", 1) for text in arguments.peer):
            lines[name] = peer(table, name, python, min(3, arguments.fits))
        measured["lines"] = {
            name: {f"{epsilon:g}": round(float(value), 2) for epsilon, value in line.items()}
            for name, line in lines.items()
        }
        file.write_text(json.dumps(measured, indent=2) + "\n")
        print(file.read_text())
    (IMAGES / "accuracy.svg").write_text(draw(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
