"""``discreet figures``: the figures of the lecture notes, redrawn."""

from __future__ import annotations

from pathlib import Path

import click

from discreet.cli.shell import FILE, CommandResult, command, progress
from discreet.lecture.figures import FIGURES
from discreet.lecture.figures.canvas import draw


@command("figures")
@click.argument("names", nargs=-1, type=click.Choice(list(FIGURES)))
@click.option("--out", type=FILE, required=True, help="Output folder; created if it does not exist.")
def figures(names: tuple[str, ...], out: Path) -> CommandResult:
    """Draw the figures of the lecture notes as SVG and PNG: all of them, or those that are named.

    \b
    discreet figures --out figures
    discreet figures composition observers --out figures

    Every value is computed when it is drawn. Measurements use synthetic records with a fixed seed.
    """
    out.mkdir(parents=True, exist_ok=True)
    written, chosen = [], names or tuple(FIGURES)
    with progress() as bar:
        task = bar.add_task("figures", total=len(chosen))
        for name in chosen:
            bar.update(task, description=name)
            figure = FIGURES[name]()
            files = [str(file) for file in draw(figure, out, name)]
            written.append({"name": name, "title": figure.title, "caption": figure.caption, "files": files})
            bar.advance(task)
    return CommandResult({"figures": written}, f"{len(written)} figures written to {out}")
