"""``make reference``: writes docs/reference.md from the faces of the rooms, so that no public name is missing in it.

A face is the ``__all__`` of a room's ``__init__``. Nothing is imported; ``tests/test_public_names.py`` compares.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, PAGE = ROOT / "src" / "discreet", ROOT / "docs" / "reference.md"

CHAPTERS = {
    "The short names": ("discreet",),
    "What is released and what it costs": ("events", "guarantee", "accounting", "compat"),
    "Plans": ("plan", "selection"),
    "Ledger and certificate": ("ledger", "certificate"),
    "The trusted core": ("core", "core.mean"),
    "Tables": ("linear", "statistics", "evaluation"),
    "PyTorch": ("pytorch", "pytorch.layer_rules"),
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
    for path in sorted(SOURCE.rglob("__init__.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[".".join(path.parent.relative_to(SOURCE).parts) or "discreet"] = ast.literal_eval(
                    node.value
                )
    return found


def page() -> str:
    """The text of the page."""
    names = faces()
    missing = names.keys() - {room for rooms in CHAPTERS.values() for room in rooms}
    if missing:
        raise SystemExit(f"The reference has no chapter for {', '.join(sorted(missing))}.")
    lines = [
        "# Reference",
        "",
        "The public names, from the faces of the rooms. Everything else may change.",
        "",
    ]
    for title, rooms in CHAPTERS.items():
        lines += [f"## {title}", ""]
        for room in rooms:
            lines += [f"::: {room if room == 'discreet' else f'discreet.{room}'}"]
            shown = WHOLE[room] if room in WHOLE else [name for name in names[room] if name != "__version__"]
            if room == "discreet":
                lines += [
                    "    options:",
                    "      members: false",
                    "",
                    ", ".join(f"`{name}`" for name in shown) + ".",
                ]
            elif shown:
                lines += ["    options:", f"      members: [{', '.join(shown)}]"]
            lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
