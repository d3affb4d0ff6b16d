"""Structure and wording of the code in numbers (``make metrics``); ``--check`` applies the rules of ``make check``.

A line of code holds code: blank lines, comments and docstrings do not count. A walk is one call by a user. It counts
the files with a function that ran and the largest depth of the package's own frames; code that runs because a module
is imported does not count.
"""

import argparse
import ast
import io
import re
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "discreet"
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))

MANY_PARAMETERS = 10
"""A function with this many parameters lacks a value object, unless it is an estimator or a command."""

LAW = re.compile(
    r"(?<![A-Za-z])[Ll]aws?(?![A-Za-z])(?! of large numbers)"
    r"|(?<=[a-z])Laws?(?![a-z])|(?<![A-Za-z])Laws?(?=[A-Z])|(?<![A-Za-z])LAWS?(?![A-Za-z])"
)
BANNER = re.compile(r"^\s*# -{3,}", re.MULTILINE)
UNCLEAR_START = re.compile(r"(The same|As)\b")

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Module:
    """One source file, read once."""

    path: Path
    text: str = field(init=False, repr=False)
    tree: ast.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.text = self.path.read_text()
        self.tree = ast.parse(self.text)

    @property
    def name(self) -> str:
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_entry(self) -> bool:
        """Whether the file is the ``__init__`` or ``__main__`` of its package."""
        return self.path.stem in ("__init__", "__main__")

    @cached_property
    def code(self) -> set[int]:
        """The numbers of the lines that hold code."""
        with self.path.open("rb") as file:
            tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in NOT_CODE]
        lines = {line for token in tokens[1:] for line in range(token.start[0], token.end[0] + 1)}
        return lines - set(_docstring_lines(self.tree))

    @cached_property
    def first_lines(self) -> list[str]:
        """The first line of every docstring of the module, its classes and its functions."""
        kinds = (ast.Module, ast.ClassDef, *FUNCTIONS)
        texts = [ast.get_docstring(node) for node in ast.walk(self.tree) if isinstance(node, kinds)]
        return [text.splitlines()[0] for text in texts if text]

    @cached_property
    def identifiers(self) -> list[str]:
        """Every name that the module defines: its own, and those of classes, functions, parameters and variables."""
        names = [] if self.is_entry else [self.path.stem]
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
                names.append(node.name)
            elif isinstance(node, ast.arg):
                names.append(node.arg)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.append(node.id if isinstance(node, ast.Name) else node.attr)
        return names

    @cached_property
    def long_signatures(self) -> list[str]:
        """Functions with many parameters, except commands and the constructors of estimators."""
        estimators = {
            id(function)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ClassDef) and node.name.startswith("Private")
            for function in node.body
        }
        functions = [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]
        return [
            node.name
            for node in functions
            if _parameters(node) >= MANY_PARAMETERS and not _is_command(node) and id(node) not in estimators
        ]

    def imported(self, known: set[str], eager: bool = False) -> set[str]:
        """The package's modules that this one imports: anywhere, or only those that its own import waits for."""
        nodes = _eager(self.tree.body) if eager else ast.walk(self.tree)
        return {name for node in nodes for name in _targets(node) if name in known} - {self.name}


def trusted_lines() -> tuple[int, int]:
    """Code lines of the gate, and of all files that the guarantee rests on."""
    from discreet.trusted import TRUSTED_FILES

    return lines_of({"trusted": TRUSTED_FILES["trusted"]}), lines_of(TRUSTED_FILES)


def lines_of(files: Mapping[str, tuple[str, ...]]) -> int:
    """Code lines of files that are listed by package."""
    return sum(
        len(Module(SOURCE / package / f"{name}.py").code) for package in files for name in files[package]
    )


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(re.search(r"\bcommand\b|\boption\b", ast.unparse(one)) for one in node.decorator_list)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of strings that stand alone: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _eager(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            yield from _eager(getattr(node, part, []))


def _targets(node: ast.AST) -> Iterator[str]:
    """``from discreet.a import b`` may import the module a.b or a name in a: yield both, callers keep modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from below
        yield node.module


class Package:
    """All source files, and the counts over several of them."""

    def __init__(self) -> None:
        self.modules = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
        self.names = {module.name for module in self.modules}

    def clashes(self, commands: bool = True) -> dict[str, int]:
        """File names that several modules share, with their number. A command may share the name of its function."""
        inner = [module.path for module in self.modules if not module.is_entry]
        stems = Counter(path.stem for path in inner if commands or path.parent != SOURCE / "cli")
        return {stem: count for stem, count in sorted(stems.items()) if count > 1}

    def repeated_classes(self) -> dict[str, int]:
        """Class names that occur in several places, with their number."""
        classes = (n.name for m in self.modules for n in ast.walk(m.tree) if isinstance(n, ast.ClassDef))
        return {name: count for name, count in sorted(Counter(classes).items()) if count > 1}

    def cycles(self) -> list[list[str]]:
        """Groups of modules that import one another at import time. ``__init__`` files do not count."""
        arrows = {m.name: m.imported(self.names, eager=True) for m in self.modules if not m.is_entry}
        arrows = {name: targets & set(arrows) for name, targets in arrows.items()}
        return [sorted(group) for group in _strongly_connected(arrows)]

    def mirrored(self) -> tuple[int, int, int]:
        """Modules with a test file of their name; modules that a test of their package names or imports; modules."""
        inner = [module for module in self.modules if not module.is_entry]
        named = {module.name for module in inner if (_mirror(module) / f"test_{module.path.name}").exists()}
        tests = {folder: _imported_by_tests(folder, self.names) for folder in {_mirror(one) for one in inner}}
        imported = {module.name for module in inner if module.name in tests[_mirror(module)]}
        return len(named), len(named | imported), len(inner)


def _mirror(module: Module) -> Path:
    """The folder with the tests of a module's package."""
    return TESTS / module.path.relative_to(SOURCE).parent


def _imported_by_tests(folder: Path, known: set[str]) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in folder.glob("test_*.py")]
    return {name for tree in trees for node in ast.walk(tree) for name in _targets(node) if name in known}


def _strongly_connected(arrows: dict[str, set[str]]) -> Iterator[set[str]]:
    """Sets of modules that can all be reached from one another."""
    reached = {name: _reachable(name, arrows) for name in arrows}
    seen: set[str] = set()
    for name in arrows:
        component = {other for other in reached[name] if name in reached[other]}
        if component and name not in seen:
            seen |= component
            yield component


def _reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += arrows[name]
    return found


class Walk:
    """The files of the package that a call runs through, and the depth of its frames."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.depth = 0
        self._ours: dict[str, bool] = {}

    def of(self, call: Callable[[], object]) -> "Walk":
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        return self

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._is_ours(frame):
            ours = [above for above in _frames(frame) if self._is_ours(above)]
            if not any(above.f_code.co_name == "<module>" for above in ours):
                self.files.add(frame.f_code.co_filename)
                self.depth = max(self.depth, len(ours))

    def _is_ours(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if name not in self._ours:
            self._ours[name] = name.startswith(str(SOURCE))
        return self._ours[name]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


def _account() -> Callable[[], object]:
    import discreet

    event = discreet.PoissonSampled(0.01, discreet.Gaussian(1.0)) * 100
    return lambda: discreet.account(event).epsilon(1e-5)


def _table() -> tuple[list[list[float]], list[bool]]:
    import numpy as np

    x = np.random.default_rng(0).uniform(0, 10, (400, 3))
    return x.tolist(), (x[:, 0] > 3).tolist()


def _linear_fit() -> Callable[[], object]:
    from discreet.linear import PrivateLogisticRegression

    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10))
    return lambda: model.fit(*_table())


def _step(before: int = 1) -> Callable[[], object]:
    """A step after ``before`` others. The model is checked before the first two, and not before later ones."""
    import torch

    from discreet import Recipe
    from discreet.pytorch import PrivateRun

    model = torch.nn.Linear(3, 1)
    plan = Recipe(records=50, batch_size=24, steps=30).with_noise(2.0, delta=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateRun(plan, model, optimizer, lambda model, batch: model(batch)[:, 0])
    batches = iter(run.batches(torch.ones(50, 3)))
    for _ in range(before):
        run.step(next(batches))
    batch = next(batches)
    return lambda: run.step(batch)


def _rehearsal() -> Callable[[], object]:
    from discreet.parties import rehearse
    from support.parties_bank import holders, study

    return lambda: rehearse(study("sgd2"), holders())


def _command() -> Callable[[], object]:
    from click.testing import CliRunner

    from discreet.cli import main

    folder = Path(tempfile.mkdtemp())
    rows, flags = _table()
    lines = [f"{a},{b},{'yes' if flag else 'no'}" for (a, b, _), flag in zip(rows, flags, strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,ill", *lines]))
    bounds = "[columns]\na = { bounds = [0, 10] }\nb = { bounds = [0, 10] }\nill = { flag = 'yes' }\n"
    (folder / "schema.toml").write_text(f'target = "ill"\n{bounds}')
    words = (
        f"fit {folder}/table.csv --schema {folder}/schema.toml --epsilon 1 --delta 1e-6 --out {folder}/model"
    )
    return lambda: _require_success(CliRunner().invoke(main, words.split()))


def _require_success(result: object) -> None:
    if getattr(result, "exit_code", 0):
        raise SystemExit(getattr(result, "output", "failed"))


WALKS = {
    "account().epsilon": _account,
    "linear fit": _linear_fit,
    "PrivateRun.step": _step,
    "a later step": lambda: _step(20),
    "SGD2 rehearsal": _rehearsal,
    "discreet fit": _command,
}
WANTED = {
    "account().epsilon": "11",
    "linear fit": "<= 40",
    "PrivateRun.step": "<= 24",
    "a later step": "fewer",
    "SGD2 rehearsal": "<= 36",
}


def rows(package: Package) -> Iterator[tuple[str, str, str]]:
    """The label of each count, the count, and its goal."""
    from discreet.trusted import FAST_PYTORCH_FILES, KERNEL_FILES

    modules = package.modules
    named, tested, inner = package.mirrored()
    unclear = sum(bool(UNCLEAR_START.match(line)) for module in modules for line in module.first_lines)
    yield "files / code lines", f"{len(modules)} / {sum(len(one.code) for one in modules)}", ""
    yield "trusted lines, gate / all", " / ".join(map(str, trusted_lines())), "<= 1020 / <= 10000"
    yield "lines of fast PyTorch", str(lines_of(FAST_PYTORCH_FILES)), "<= 3000"
    yield "lines of compiled table kernels", str(lines_of(KERNEL_FILES)), "<= 2400"
    yield "module names that clash", str(len(package.clashes(commands=False))), "0"
    yield "class names used twice or more", str(len(package.repeated_classes())), "<= 5"
    yield (
        "functions with 10 parameters or more",
        str(sum(len(one.long_signatures) for one in modules)),
        "<= 10",
    )
    yield '"law"', str(sum(len(LAW.findall(one.text)) for one in modules)), "<= 20"
    yield 'docstrings "The same ..." / "As ..."', str(unclear), "0"
    yield "banners (# ----)", str(sum(len(BANNER.findall(one.text)) for one in modules)), "0"
    yield "modules tested: by name, by import", f"{named}, {tested} / {inner}", "all"
    for name, prepare in WALKS.items():
        call = prepare()
        with redirect_stdout(io.StringIO()):
            walk = Walk().of(call)
        yield f"walk: {name}, files / depth", f"{len(walk.files)} / {walk.depth}", WANTED.get(name, "fewer")


def complaints(package: Package) -> Iterator[str]:
    """Import cycles, imports in a forbidden direction, and module names that clash."""
    import test_layers

    for cycle in package.cycles():
        yield f"These modules import one another: {', '.join(cycle)}."
    yield from test_layers.violations({m.path: test_layers.imports(m.path) for m in package.modules})
    for name, count in package.clashes(commands=False).items():
        yield f"{count} modules are named {name}.py. Choose another name for the new one."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="report violations of the rules only")
    package = Package()
    if parser.parse_args().check:
        found = list(complaints(package))
        print(*found, sep="\n", end="\n" if found else "")
        raise SystemExit(bool(found))
    print(f"{'':42} {'now':>14}   goal")
    for label, number, goal in rows(package):
        print(f"{label:42} {number:>14}   {goal}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
