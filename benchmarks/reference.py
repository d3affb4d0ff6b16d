"""``make reference``: writes docs/reference.md and a page for each room into docs/reference, from the rooms' faces.

A face is the ``__all__`` of a room's ``__init__``, or of a room that is one file. Nothing is imported;
``tests/test_public_names.py`` compares.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, FOLDER = ROOT / "src" / "discreet", ROOT / "docs" / "reference"

CHAPTERS = {
    "The short names": ("discreet",),
    "What is released and what it costs": ("events", "guarantee", "accounting", "compat"),
    "Plans": ("plan", "selection"),
    "Ledger and certificate": ("ledger", "certificate"),
    "The trusted core": ("core",),
    "Tables": ("linear", "statistics", "statistics.mean", "evaluation"),
    "PyTorch": ("pytorch", "pytorch.layer_rules", "adapters"),
    "Several parties": ("parties",),
    "Audit and report": ("audit", "report"),
    "Lectures": ("lecture", "lecture.figures"),
    "Errors": ("errors",),
}
WHOLE = {"guarantee": ("Bounds", "Budget", "Guarantee"), "errors": ()}
"""Loose modules, which have no face: what is shown of them; everything, if nothing is named."""


def faces() -> dict[str, list[str]]:
    """The public names of each room that has a face; of the package itself as ``discreet``."""
    found = {}
    for path in sorted({*SOURCE.rglob("__init__.py"), *SOURCE.glob("*.py")}):
        room = path.parent if path.stem == "__init__" else path.with_suffix("")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[".".join(room.relative_to(SOURCE).parts) or "discreet"] = ast.literal_eval(node.value)
    return found


def pages() -> dict[Path, str]:
    """The texts of all pages, by their paths: the list of rooms, and a page for each."""
    names = faces()
    missing = names.keys() - {room for rooms in CHAPTERS.values() for room in rooms}
    if missing:
        raise SystemExit(f"The reference has no chapter for {', '.join(sorted(missing))}.")
    lines = ["# Reference", "", "The public names, a page for each room. Everything else may change.", ""]
    found = {}
    for title, rooms in CHAPTERS.items():
        lines += [f"## {title}", "", "| room | names |", "|---|---|"]
        for room in rooms:
            shown = WHOLE[room] if room in WHOLE else [name for name in names[room] if name != "__version__"]
            told = ", ".join(f"`{name}`" for name in shown) or "everything in it"
            lines += [f"| [`{_module(room)}`](reference/{room}.md) | {told} |"]
            found[FOLDER / f"{room}.md"] = _page(room, shown, told)
        lines += [""]
    return {FOLDER.with_suffix(".md"): "\n".join(lines)} | found


def _module(room: str) -> str:
    return room if room == "discreet" else f"discreet.{room}"


def _page(room: str, shown: Sequence[str], told: str) -> str:
    """The page of a room; the short names of the package are explained on the pages of their rooms."""
    lines = [
        f"# {_module(room)}",
        "",
        f"::: {_module(room)}",
        "    options:",
        "      show_root_heading: false",
    ]
    if room == "discreet":
        lines += ["      members: false", "", f"{told}."]
    elif shown:
        lines += [f"      members: [{', '.join(shown)}]"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for path, text in pages().items():
        path.write_text(text)
