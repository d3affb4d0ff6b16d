"""The pictures of the documentation that are no figures of the notes. Run with ``make pictures``.

``architecture.svg`` is drawn from the list of arrows in ``tests/test_layers.py``, so it cannot say something else.
The screenshots are of a report and of the studio, both made for the purpose.
"""

import re
import subprocess
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FIGURES, IMAGES = ROOT / "docs" / "figures", ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT / "tests")]

WALK = ("event", "curve", "plan", "engine", "ledger", "certificate", "report")
WORDS = {
    "errors": "what can be raised",
    "files": "whole files, canonical JSON",
    "charts": "pictures as SVG",
    "guarantee": "a wish, a fact",
    "events": "what is released",
    "accounting": "what it costs, from both sides",
    "core": "clipping, sampling, noise",
    "ledger": "durable record of spending",
    "compat": "other libraries' interfaces",
    "plan": "decisions before data is read",
    "selection": "the best of several",
    "certificate": "proofs and verification",
    "trusted": "the gate: queries, charges, permits, noise",
    "linear": "tables",
    "pytorch": "networks",
    "parties": "several data holders",
    "statistics": "private statistics of tables",
    "evaluation": "private scores of a model",
    "audit": "attacks and examinations",
    "report": "the report page",
    "lecture": "theorems for comparison",
    "adapters": "other frameworks; audits of engines",
    "studio": "a page for planning",
    "cli": "the command line",
}
WIDTH, ROW, GAP = 760, 46, 10


def architecture(order):
    """What happens in a row of arrows, and under it the rooms, each line on those it may import."""
    lines = [[room for room in line if not room.startswith("_")] for line in reversed(order)]
    lines = [line for line in lines if line]
    height = 96 + len(lines) * (ROW + GAP)
    parts = [
        f'<svg class="discreet-figure" fill="currentColor" viewBox="0 0 {WIDTH} {height}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="15" text-anchor="middle">',
        "<style>@media (prefers-color-scheme: dark) {:root.discreet-figure{color: #e7eaf0}}</style>",
        *_walk(),
    ]
    for index, line in enumerate(lines):
        width = (WIDTH - GAP * (len(line) - 1)) / len(line)
        parts += [
            _room(room, place * (width + GAP), 92 + index * (ROW + GAP), width)
            for place, room in enumerate(line)
        ]
    return "\n".join([*parts, "</svg>\n"])


def _walk():
    pitch = WIDTH / len(WALK)
    for index, word in enumerate(WALK):
        x = pitch * (index + 0.5)
        yield f'<text x="{x:.0f}" y="38" font-weight="600" style="fill: var(--figure-1, #1f5fbf)">{word}</text>'
        if index:
            yield f'<text x="{pitch * index:.0f}" y="38" opacity="0.75">→</text>'
    words = "Data flows one way. Below, each package imports only from the rows under it."
    yield f'<text x="{WIDTH / 2}" y="70" font-size="13">{words}</text>'


def _room(name, x, y, width):
    return (
        f'<rect x="{x + 0.5:.1f}" y="{y}" width="{width - 1:.1f}" height="{ROW}" rx="6" '
        'fill="none" stroke="currentColor" stroke-opacity="0.45"/>'
        f'<text x="{x + width / 2:.1f}" y="{y + 20}" font-weight="600">{name}</text>'
        f'<text x="{x + width / 2:.1f}" y="{y + 37}" font-size="12">{escape(WORDS.get(name, ""))}</text>'
    )


def photograph(address, path, *, dark=False, width=1100, height=900, ready=None):
    """What a browser shows at an address."""
    from support.browser import page

    with page(dark=dark, width=width, height=height) as shown:
        shown.goto(address)
        if ready:
            shown.wait_for_selector(ready)
        shown.screenshot(path=path)


def report_page(folder):
    """The report of a small private model; the page's address."""
    from sklearn.datasets import load_breast_cancer

    from discreet.linear import PrivateLogisticRegression
    from discreet.report import Cover, Report

    x, y = load_breast_cancer(return_X_y=True)
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-5, classes=(0, 1)).fit(x, y)
    cover = Cover(
        "Clinic of Somewhere", "second opinion on tumours", "breast cancer, Wisconsin", "one patient"
    )
    page = folder / "report.html"
    Report(model.certificate_, "Tumours, 2026", cover=cover).save(page)
    return page.as_uri()


def main():
    import tempfile

    from test_layers import ORDER

    (FIGURES / "architecture.svg").write_text(architecture(ORDER))
    with tempfile.TemporaryDirectory() as name:
        photograph(report_page(Path(name)), IMAGES / "report.png", width=900, height=820)
    words = [sys.executable, "-m", "discreet", "studio", "--no-browser"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://\S+", process.stderr.readline())[0]
        photograph(address, IMAGES / "studio.png", width=1280, height=900, ready="body[data-drawn='1']")
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main()
