"""Every example runs and prints something, without a warning."""

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SLOW = {"demo.py", "lora.py", "three_hospitals.py"}
PACKAGES = {
    "accelerate_digits.py": ("accelerate",),
    "hugging_face.py": ("accelerate", "peft"),
    "lightning_digits.py": ("lightning",),
}
"""What an example needs that an extra of its own brings."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.slow if path.name in SLOW else (), id=path.name)
        for path in EXAMPLES
    ],
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # inside of Lightning
def test_example_runs(example, capsys, monkeypatch):
    for package in PACKAGES.get(example.name, ()):
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert "epsilon" in capsys.readouterr().out


NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.py"))
HEAVY = {"1_table.py", "2_network.py", "5_lecture.py"}
sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "site"))
from notebooks import cells, run  # noqa: E402

sys.path.pop(0)


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=pytest.mark.slow if p.name in HEAVY else (), id=p.stem) for p in NOTEBOOKS]
)
def test_notebook_runs(path):
    assert any("epsilon" in printed or "private" in printed for _, _, printed, _ in run(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_the_one_of_its_source(path):
    """The file that opens in Jupyter was made from the one that is tested."""
    made = json.loads(path.with_suffix(".ipynb").read_text())["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in made] == list(cells(path.read_text()))
    assert len(NOTEBOOKS) == 5


def test_a_notebook_keeps_the_picture_that_ends_a_cell(tmp_path):
    path = tmp_path / "pictures.py"
    figure = "from discreet.lecture.figures import FIGURES\nfigure = FIGURES['noise-by-steps']()"
    path.write_text(f"# %%\n{figure}\nfigure\n\n# %%\nprint(1)\nfigure.title\n")
    (_, _, none, picture), (_, _, printed, no_picture) = run(path)
    assert (none, printed, no_picture) == ("", "1\n", None)
    assert picture.startswith(b"\x89PNG")


def test_the_notebook_of_the_lecture_shows_every_figure():
    from discreet.lecture.figures import FIGURES

    source = next(path for path in NOTEBOOKS if path.stem == "5_lecture")
    made = json.loads(source.with_suffix(".ipynb").read_text())["cells"]
    pictures = [output for cell in made for output in cell.get("outputs", ()) if "data" in output]
    assert len(pictures) == len(FIGURES)
    assert all(f'FIGURES["{name}"]' in source.read_text() for name in FIGURES)
