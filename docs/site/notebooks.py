"""Write notebooks from plain Python files: run the cells that begin with ``# %%`` and keep their output and pictures.

    python docs/site/notebooks.py            # writes examples/notebooks/*.ipynb

The ``.py`` files are what people edit, review and test; the ``.ipynb`` files beside them open in Jupyter.
"""

import ast
import base64
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
    """Run all code cells of a file in one namespace; yield each with its printed text and picture, if any."""
    names = {"__name__": "__main__"}
    for kind, source in cells(path.read_text()):
        printed, picture = io.StringIO(), None
        if kind == "code":
            with redirect_stdout(printed):
                picture = _execute(ast.parse(source, str(path)), names)
        yield kind, source, printed.getvalue(), picture


def _execute(tree, names):
    """Execute a cell. Like Jupyter, show the value of a final expression, if it is a picture."""
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    return value._repr_png_() if hasattr(value, "_repr_png_") else None


def notebook(path):
    """Return the file as an executed notebook (format 4.5)."""
    written = []
    for number, (kind, source, printed, picture) in enumerate(run(path)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(True)}
        if kind == "code":
            stream = {"output_type": "stream", "name": "stdout", "text": printed.splitlines(True)}
            outputs = [stream] if printed else []
            if picture:
                data = {"image/png": base64.b64encode(picture).decode()}
                outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
            cell |= {"execution_count": None, "outputs": outputs}
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
