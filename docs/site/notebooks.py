"""Notebooks from plain Python: cells that begin with ``# %%`` are run, and kept with what they print.

    python docs/site/notebooks.py            # writes examples/notebooks/*.ipynb

The ``.py`` files are what people edit, review and test; the ``.ipynb`` files beside them open in Jupyter.
"""

import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "examples" / "notebooks"


def cells(text):
    """The kind and the source of every cell."""
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        kind, _, source = part.partition("\n")
        if "[markdown]" in kind:
            yield "markdown", re.sub(r"^# ?", "", source.strip("\n"), flags=re.MULTILINE)
        else:
            yield "code", source.strip("\n")


def run(path):
    """Run all code cells of a file in one namespace; the cells with what each printed."""
    names = {"__name__": "__main__"}
    for kind, source in cells(path.read_text()):
        printed = io.StringIO()
        if kind == "code":
            with redirect_stdout(printed):
                exec(compile(source, str(path), "exec"), names)
        yield kind, source, printed.getvalue()


def notebook(path):
    """The file as a notebook (format 4.5), run."""
    written = []
    for number, (kind, source, printed) in enumerate(run(path)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(True)}
        if kind == "code":
            stream = {"output_type": "stream", "name": "stdout", "text": printed.splitlines(True)}
            cell |= {"execution_count": None, "outputs": [stream] if printed else []}
        written.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": written, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main(names):
    for path in sorted(FOLDER.glob("*.py")):
        if not names or path.stem in names:
            path.with_suffix(".ipynb").write_text(
                json.dumps(notebook(path), indent=1, ensure_ascii=False) + "\n"
            )
            print(path.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main(sys.argv[1:])
