"""The public surface as one text, ``tests/golden/api.txt``: names, signatures, commands and options.

A change that is meant is written by ``python tests/test_api_snapshot.py`` and read in review, beside CHANGELOG.md.
Annotations are left out: type checkers read those, and Python versions print them differently.
"""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import click

import discreet.errors

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import reference

SNAPSHOT = Path(__file__).parent / "golden" / "api.txt"
PLAIN = (str, int, float, bool, bytes, type(None))


def default_text(value):
    """A default as it is written, if it is plain; objects print addresses."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, tuple) and all(isinstance(part, PLAIN) for part in value):
        return repr(value)
    return "..."


def signature(value):
    """The parameters of something that can be called: names, kinds and defaults."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    words, kinds = [], [one.kind for one in found]
    for place, one in enumerate(found):
        if one.kind is one.KEYWORD_ONLY and not {one.VAR_POSITIONAL, one.KEYWORD_ONLY} & {*kinds[:place]}:
            words.append("*")
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        given = "" if one.default is one.empty else f"={default_text(one.default)}"
        words.append(f"{mark}{one.name}{given}")
    return f"({', '.join(words)})"


def members(kind):
    """The public members of a class that are written by us, with their signatures."""
    for name in sorted(vars_of_ours(kind)):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, classmethod | staticmethod):
            yield f"  {name}{signature(getattr(kind, name))}  [{type(value).__name__}]"
        elif inspect.isfunction(value):
            yield f"  {name}{signature(value)}"
        else:
            yield f"  {name}"


def vars_of_ours(kind):
    own = (base for base in kind.__mro__ if base.__module__.partition(".")[0] == "discreet")
    return {name for base in own for name in vars(base) if not name.startswith("_")}


def of_name(face, name, value):
    """The lines of one public name."""
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__] if issubclass(value, Exception) else []
        yield f"{face}.{name}: class {signature(value)}{''.join(f' is a {base}' for base in bases)}"
        yield from members(value)
    elif callable(value):
        yield f"{face}.{name}: {signature(value)}"
    else:
        yield f"{face}.{name}: {type(value).__name__}"


def is_error(value):
    return inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == "discreet.errors"


def names():
    """The lines of every name in every face; None for what needs a package that is not here."""
    found = {}
    errors = [name for name, value in vars(discreet.errors).items() if is_error(value)]
    for room, listed in sorted((reference.public_names() | {"errors": errors}).items()):
        face = room if room == "discreet" else f"discreet.{room}"
        for name in sorted(listed):
            key = f"{face}.{name}"
            try:
                value = getattr(import_module(face), name)
            except (discreet.MissingDependency, ModuleNotFoundError):
                found[key] = None
                continue
            found[key] = list(of_name(face, name, value))
    return found


def parameter(one):
    """An argument or option of a command."""
    shape = "|".join(one.type.choices) if isinstance(one.type, click.Choice) else one.type.name
    marks = [word for word in ("required", "multiple", "is_flag") if getattr(one, word, False)]
    given = f"={one.default!r}" if isinstance(one.default, PLAIN[:-1]) else ""
    words = " ".join([*one.opts, *one.secondary_opts])
    return f"  {words} <{shape}>{given}{''.join(f' [{mark}]' for mark in marks)}"


def commands(command, path="discreet"):
    """The lines of a command and of those below it, by path, without ``--help``: click caches its spelling."""
    context = click.Context(command)
    yield path, [f"{path}", *map(parameter, command.params)]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}")


def surface():
    from discreet.cli import main

    return names() | dict(commands(main))


def blocks(text):
    """The snapshot by its keys: a block begins with a line that is not indented."""
    found, key = {}, ""
    for line in text.splitlines():
        if not line.startswith("  "):
            key = line.partition(":")[0]
        found.setdefault(key, []).append(line)
    return found


def differences(now, written):
    """What is new, gone or other, block by block; names that cannot be loaded here are not compared."""
    here = {key: lines for key, lines in now.items() if lines is not None}
    absent = now.keys() - here.keys()
    keys = sorted((here.keys() | written.keys()) - absent)
    return [key for key in keys if here.get(key) != written.get(key)]


def test_the_public_surface_is_the_one_that_was_written_down():
    found = differences(surface(), blocks(SNAPSHOT.read_text()))
    assert not found, (
        f"run `python {Path(__file__).name}` in tests, and name the change in CHANGELOG.md: {found}"
    )


def test_every_kind_of_change_is_noticed():
    """The twins: a parameter, a default, a name, an option or a command more, less or other."""

    def twin(x, y=1, *, z=None):
        """Of the surface."""

    class Face:
        """Of a room."""

        def method(self, x): ...

    @click.command("do")
    @click.option("--much", type=click.Choice(["a", "b"]), default="a")
    @click.option("--flag", is_flag=True)
    def do(much, flag): ...

    Face.__module__ = "discreet.twin"
    lines = {"f": list(of_name("discreet", "f", twin)), "F": list(of_name("discreet", "F", Face))}
    lines |= dict(commands(do, "discreet do"))
    assert lines["f"] == ["discreet.f: (x, y=1, *, z=None)"]
    assert lines["F"] == ["discreet.F: class ()", "  method(self, x)"]
    assert lines["discreet do"][1:3] == ["  --much <a|b>='a'", "  --flag <boolean> [is_flag]"]
    assert differences(lines, lines) == []
    for key, changed in (
        ("f", ["discreet.f: (x, y=2, *, z=None)"]),
        ("F", lines["F"][:1]),
        ("discreet do", None),
    ):
        other = {name: value for name, value in (lines | {key: changed}).items() if value is not None}
        assert differences(lines, other) == [key]
        assert differences(other, lines) == [key]
    assert differences(lines | {"f": None}, lines) == []  # of a package that is not installed


if __name__ == "__main__":
    found = surface()
    missing = [key for key, lines in found.items() if lines is None]
    if missing:
        raise SystemExit(
            f"Install every extra first; these names cannot be loaded here: {', '.join(missing)}."
        )
    SNAPSHOT.write_text("\n".join(line for lines in found.values() for line in lines) + "\n")
