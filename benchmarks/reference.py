"""Write docs/reference.md and a page for each package into docs/reference (``make reference``).

The public names are the ``__all__`` of a package's ``__init__``, or of a package of one file. Nothing is imported;
``tests/test_public_names.py`` compares.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, FOLDER = ROOT / "src" / "discreet", ROOT / "docs" / "reference"

CHAPTERS = {
    "Models of tables": ("linear", "evaluation", "selection"),
    "PyTorch": ("pytorch", "pytorch.layer_rules", "adapters"),
    "Statistics": ("statistics", "statistics.mean"),
    "Several parties": ("parties",),
    "Names of the package itself": ("discreet",),
    "Plans": ("plan",),
    "Accounting": ("events", "guarantee", "accounting", "compat"),
    "Ledger and certificate": ("ledger", "certificate"),
    "Clipping, noise and sampling": ("core",),
    "Audit and report": ("audit", "report"),
    "Lectures": ("lecture", "lecture.figures"),
    "Errors": ("errors",),
}
WHOLE = {"guarantee": ("Bounds", "Budget", "Guarantee"), "errors": ()}
"""Modules without ``__all__``: the names to show, or everything if the tuple is empty."""


def public_names() -> dict[str, list[str]]:
    """Return the public names of each package; those of the whole package as ``discreet``."""
    found = {}
    for path in sorted({*SOURCE.rglob("__init__.py"), *SOURCE.glob("*.py")}):
        folder = path.parent if path.stem == "__init__" else path.with_suffix("")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[".".join(folder.relative_to(SOURCE).parts) or "discreet"] = ast.literal_eval(node.value)
    return found


def pages() -> dict[Path, str]:
    """Return the texts of all pages by their paths: the list of packages, and a page for each."""
    names = public_names()
    missing = names.keys() - {package for packages in CHAPTERS.values() for package in packages}
    if missing:
        raise SystemExit(f"The reference has no chapter for {', '.join(sorted(missing))}.")
    lines = [
        "# Reference",
        "",
        "The public names, with a page for each package. Everything else may change.",
        "",
    ]
    found = {}
    for title, packages in CHAPTERS.items():
        lines += [f"## {title}", "", "| package | names |", "|---|---|"]
        for package in packages:
            shown = WHOLE[package] if package in WHOLE else _estimators_first(names[package])
            told = ", ".join(f"`{name}`" for name in shown) or "everything in it"
            lines += [f"| [`{_module(package)}`](reference/{package}.md) | {told} |"]
            found[FOLDER / f"{package}.md"] = _page(package, shown, told)
        lines += [""]
    return {FOLDER.with_suffix(".md"): "\n".join(lines)} | found


def _estimators_first(names: Sequence[str]) -> list[str]:
    """Sort estimators and trainers before the classes and functions that they use."""
    return sorted(
        (name for name in names if name != "__version__"), key=lambda name: not name.startswith("Private")
    )


def _module(package: str) -> str:
    return package if package == "discreet" else f"discreet.{package}"


def _page(package: str, shown: Sequence[str], told: str) -> str:
    """Return the page of a package; the names of ``discreet`` itself are explained on the pages of its packages."""
    lines = [
        f"# {_module(package)}",
        "",
        f"::: {_module(package)}",
        "    options:",
        "      show_root_heading: false",
    ]
    if package == "discreet":
        lines += ["      members: false", "", f"{told}."]
    elif shown:
        lines += ["      members: false"]
        lines += [line for name in shown for line in ("", f"::: {_module(package)}.{name}")]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for path, text in pages().items():
        path.write_text(text)
