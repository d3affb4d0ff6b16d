"""Building blocks of a report: titled sections of text, lists, tables, figures and code.

A section says the same in every form. Who has something to add to the report writes a function that makes one:

>>> section = Section("Effects", (Text("One line per column."), TableBlock(("column", "effect"), (("age", "0.2"),))))
>>> print(section.to_markdown())
## Effects
<BLANKLINE>
One line per column.
<BLANKLINE>
| column | effect |
|---|---|
| age | 0.2 |
>>> "<td>0.2</td>" in section.to_html()
True

Texts are texts, whatever they hold; only a :class:`FigureBlock` is taken as it is, for it is drawn by
:mod:`discreet.charts`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

Kind = Literal["plain", "soft", "caution"]


@dataclass(frozen=True)
class Text:
    """A paragraph; ``lead`` are its first words, in bold. ``caution`` is what a reader must not overlook."""

    words: str
    kind: Kind = "plain"
    lead: str = ""

    def to_html(self) -> str:
        """For a browser."""
        lead = f"<strong>{escape(self.lead)}</strong> " if self.lead else ""
        kind = "" if self.kind == "plain" else f' class="{self.kind}"'
        return f"<p{kind}>{lead}{escape(self.words)}</p>"

    def to_markdown(self) -> str:
        """For a wiki."""
        lead = f"**{self.lead}** " if self.lead else ""
        return f"{'> ' if self.kind == 'caution' else ''}{lead}{plain(self.words)}"


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]

    def to_html(self) -> str:
        """For a browser."""
        return "<ul>" + "".join(f"\n<li>{escape(item)}</li>" for item in self.items) + "\n</ul>"

    def to_markdown(self) -> str:
        """For a wiki."""
        return "\n".join(f"- {plain(item)}" for item in self.items)


@dataclass(frozen=True)
class TableBlock:
    """Rows under a head; the first cell of a row names it. An empty head is not shown."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str = "table"

    def to_html(self) -> str:
        """For a browser; a table that is too wide for the screen can be moved, by keyboard too."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        parts = [f"<thead><tr>{head}</tr></thead>"] if any(self.head) else []
        parts += ["<tbody>", *map(_row, self.rows), "</tbody>"]
        place = f'<div class="wide" tabindex="0" role="region" aria-label="table: {escape(self.label)}">'
        return place + "<table>" + "\n".join(parts) + "</table></div>"

    def to_markdown(self) -> str:
        """For a wiki."""
        lines = [self.head, *self.rows]
        rows = ["| " + " | ".join(cell(text) for text in line) + " |" for line in lines]
        return "\n".join([rows[0], "|" + "---|" * len(self.head), *rows[1:]])


@dataclass(frozen=True)
class FigureBlock:
    """An SVG of our own, with what it shows in words."""

    svg: str
    words: str = ""

    def to_html(self) -> str:
        """For a browser."""
        return self.svg + (f'\n<p class="soft">{escape(self.words)}</p>' if self.words else "")

    def to_markdown(self) -> str:
        """Words only: a wiki shows no drawings of ours."""
        return ""


@dataclass(frozen=True)
class CodeBlock:
    """Commands, as they are typed."""

    text: str

    def to_html(self) -> str:
        """For a browser."""
        return f'<pre tabindex="0"><code>{escape(self.text)}</code></pre>'

    def to_markdown(self) -> str:
        """For a wiki."""
        return "\n".join(f"    {line}" for line in self.text.splitlines())


Block = Text | Bullets | TableBlock | FigureBlock | CodeBlock


@dataclass(frozen=True)
class Section:
    """A title, and what stands under it."""

    title: str
    blocks: tuple[Block, ...]

    def to_html(self) -> str:
        """For a browser."""
        name = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        body = "\n".join(block.to_html() for block in self.blocks)
        return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(self.title)}</h2>\n{body}\n</section>'

    def to_markdown(self) -> str:
        """For a wiki."""
        blocks = [text for text in (block.to_markdown() for block in self.blocks) if text]
        return "\n\n".join([f"## {cell(self.title)}", *blocks])

    def to_dict(self) -> dict[str, Any]:
        """For programs: the words, without the drawings."""
        return {"title": self.title, "text": [b.to_markdown() for b in self.blocks if b.to_markdown()]}


def cell(text: object) -> str:
    """Text for a cell of a Markdown table, or a title."""
    return plain(str(text)).replace("|", "\\|")


def plain(text: str) -> str:
    """Text for one line of Markdown, in which it is text whatever it holds."""
    return " ".join(text.split()).replace("<", "&lt;")


def _row(texts: Sequence[str]) -> str:
    first, *others = texts
    cells = "".join(f"<td>{escape(text)}</td>" for text in others)
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
