"""What the site needs beyond Markdown: doctests as code, also in docstrings, and figures in the page's colours."""

import re
from html import escape
from pathlib import Path

from markdown import Extension
from markdown.preprocessors import Preprocessor

_FENCE = re.compile(r"\s*(```|~~~)")
_ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
_IMAGE = re.compile(r'<img alt="([^"]*)" src="(?:[./]|figures/|images/)*([\w-]+\.svg)" ?/?>')
_CELL, _CODE = re.compile(r"<td.*?</td>", re.DOTALL), re.compile(r"<code>[^<]+")
_BREAKS = re.compile(r"(?<=\w)[._(](?=\w)")
_ID = re.compile(r'(\bid="|url\(#|href="#)')


class Doctests(Preprocessor):
    """Puts every doctest that stands bare in a text into a fence; without one, Markdown takes it for a quotation."""

    def run(self, lines):
        written, fenced, inside = [], False, False
        for line in lines:
            if _FENCE.match(line) and not inside:
                fenced = not fenced
            elif not fenced and not inside and line.lstrip().startswith(">>> "):
                inside = True
                written += ["", _indent(line) + "```pycon"]
            elif inside and not line.strip():
                inside = False
                written.append(_indent(written[-1]) + "```")
            written.append(line if fenced or inside else _ROLE.sub(_name, line))
        return written + ["```"] * inside


class DoctestExtension(Extension):
    def extendMarkdown(self, md):
        md.preprocessors.register(Doctests(md), "doctests", 28)  # before fences are read


def on_config(config):
    config["markdown_extensions"].append(DoctestExtension())
    packages = sorted(path.name for path in (Path(config["docs_dir"]) / "reference").glob("*.md"))
    (reference,) = (section["Reference"] for section in config["nav"] if "Reference" in section)
    reference += [{_module(name): f"reference/{name}"} for name in packages]
    return config


def _module(name):
    package = name.removesuffix(".md")
    return package if package == "discreet" else f"discreet.{package}"


def on_page_content(html, page, config, files):
    """Figures become part of the page, so that they have its colours; names in tables break where words end."""
    folder = Path(config["docs_dir"])
    html = _CELL.sub(lambda cell: _CODE.sub(lambda code: _BREAKS.sub(r"\g<0><wbr>", code[0]), cell[0]), html)
    return _IMAGE.sub(lambda found: _inline(next(folder.glob(f"*/{found[2]}")), found[1]), html)


def on_post_page(output, page, config):
    """The theme's search dialog gets a name for those who hear the page."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _inline(path, words):
    svg = path.read_text()
    svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return _ID.sub(
        lambda found: f"{found[1]}{path.stem}-", svg
    )  # ids are the page's, so each figure has its own


def _indent(line):
    return line[: len(line) - len(line.lstrip())]


def _name(found):
    return f"`{found[2].rpartition('.')[2] if found[1] else found[2]}`"
