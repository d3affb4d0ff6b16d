"""The plan of the building in numbers. Run with ``make house``; ``--check`` does what ``make check`` insists on.

Lines of code are lines that hold code: no blank lines, comments or docstrings. A walk is one call of a user; the
files it touches are those with a function that ran, and the depth is that of our own frames. What runs because a
module is imported on the way (bodies of classes, constants) is not part of the walk.
"""

import argparse
import ast
import io
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from types import FrameType

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "discreet"
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))

SMALL = 40
"""A file with less code than this should have a reason."""

CLASHES: set[str] = set()
"""Names that more than one room had when this was written. The list gets shorter, never longer."""

SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Module:
    """One source file, read once."""

    path: Path
    tree: ast.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text())

    @property
    def name(self) -> str:
        parts = self.path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_face(self) -> bool:
        return self.path.stem in ("__init__", "__main__")

    @cached_property
    def code(self) -> set[int]:
        """The numbers of the lines that hold code."""
        with self.path.open("rb") as file:
            tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in SILENT]
        lines = {line for token in tokens[1:] for line in range(token.start[0], token.end[0] + 1)}
        return lines - set(_docstring_lines(self.tree))

    def lines_of(self, node: ast.stmt) -> int:
        return len(self.code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))

    @cached_property
    def public(self) -> list[str]:
        """What a reader may take for an offer: public definitions of a module that is not private by name."""
        if self.path.stem.startswith("_"):
            return []
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return [n.name for n in self.tree.body if isinstance(n, kinds) and not n.name.startswith("_")]

    @cached_property
    def offered(self) -> set[str]:
        """``__all__`` of a face."""
        lists = [n.value for n in self.tree.body if isinstance(n, ast.Assign) and _is_all(n)]
        return {f"{self.name}.{name}" for one in lists for name in ast.literal_eval(one)}

    def imported(self, known: set[str], eager: bool = False) -> set[str]:
        """Modules of ours that this one imports: anywhere, or only those that its own import waits for."""
        nodes = _eager(self.tree.body) if eager else ast.walk(self.tree)
        return {name for node in nodes for name in _targets(node) if name in known} - {self.name}


def trusted_lines() -> tuple[int, int]:
    """Code lines of the gate, and of all files that the guarantee of statistics and evaluations rests on."""
    from discreet.trusted import TRUSTED_FILES

    lines = {
        package: sum(len(Module(SOURCE / package / f"{name}.py").code) for name in names)
        for package, names in TRUSTED_FILES.items()
    }
    return lines["trusted"], sum(lines.values())


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Lines of strings that stand alone: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


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
    """``from discreet.a import b`` may mean the module a.b or a name in a: both are offered, the known one counts."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from below
        yield node.module


class House:
    """All source files, and what can be counted about them."""

    def __init__(self) -> None:
        self.modules = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
        self.names = {module.name for module in self.modules}

    def clashes(self, commands: bool = True) -> dict[str, int]:
        """Names of several modules. A command may be named like what it calls."""
        inner = [module.path for module in self.modules if not module.is_face]
        stems = Counter(path.stem for path in inner if commands or path.parent != SOURCE / "cli")
        return {stem: count for stem, count in sorted(stems.items()) if count > 1}

    def users(self) -> Counter[str]:
        return Counter(name for module in self.modules for name in module.imported(self.names))

    def cycles(self) -> list[list[str]]:
        """Modules that wait for one another while they are imported. Faces do not count."""
        arrows = {m.name: m.imported(self.names, eager=True) for m in self.modules if not m.is_face}
        arrows = {name: targets & set(arrows) for name, targets in arrows.items()}
        return [sorted(group) for group in _knots(arrows)]

    def mirrored(self) -> tuple[int, int, int]:
        """Files with a test file of the same name in the mirror of their room, or imported by one there; and all."""
        inner = [module for module in self.modules if not module.is_face]
        named = {module.name for module in inner if (_mirror(module) / f"test_{module.path.name}").exists()}
        tests = {room: _imported_by_tests(room, self.names) for room in {_mirror(one) for one in inner}}
        imported = {module.name for module in inner if module.name in tests[_mirror(module)]}
        return len(named), len(named | imported), len(inner)


def _mirror(module: Module) -> Path:
    """Where the tests of a module's room are."""
    return TESTS / module.path.relative_to(SOURCE).parent


def _imported_by_tests(room: Path, known: set[str]) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in room.glob("test_*.py")]
    return {name for tree in trees for node in ast.walk(tree) for name in _targets(node) if name in known}


def _knots(arrows: dict[str, set[str]]) -> Iterator[set[str]]:
    """Sets of modules that can all be reached from one another."""
    reached = {name: _reachable(name, arrows) for name in arrows}
    seen: set[str] = set()
    for name in arrows:
        knot = {other for other in reached[name] if name in reached[other]}
        if knot and name not in seen:
            seen |= knot
            yield knot


def _reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += arrows[name]
    return found


# ---- walks ----


class Walk:
    """Which of our files a call runs through, and how deep."""

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
    """A step after so many others. The first two are preceded by the check of the model, later ones are not."""
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
    return lambda: _insist(CliRunner().invoke(main, words.split()))


def _insist(result: object) -> None:
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


# ---- what is printed ----


def rows(house: House) -> Iterator[tuple[str, str, str]]:
    """What is counted, its number, and the number wanted."""
    total = sum(len(module.code) for module in house.modules)
    sizes = [len(module.code) for module in house.modules if not module.is_face]
    functions = [
        module.lines_of(node)
        for module in house.modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    imports = sum(
        module.lines_of(node)
        for module in house.modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    loose = [m for m in house.modules if m.path.parent == SOURCE and not m.is_face]
    users = house.users()
    single = [m for m in house.modules if not m.is_face and users[m.name] == 1]
    shown = {name for m in house.modules if m.is_face for name in m.imported(house.names)}
    offered = {
        name.rpartition(".")[2]
        for module in house.modules
        if module.is_face or module in loose
        for name in module.offered
    }
    same, seen, inner = house.mirrored()
    yield "files / code lines", f"{len(house.modules)} / {total}", "<= 200 / <= 22700"
    yield "trusted code lines, gate / all", " / ".join(map(str, trusted_lines())), "<= 1020 / <= 10000"
    yield "code per file, median / max", f"{median(sizes):.0f} / {max(sizes)}", "~115 / 300"
    yield f"files under {SMALL} code lines", str(sum(size < SMALL for size in sizes)), "<= 10"
    yield (
        "function length, median / p90",
        f"{median(functions):.0f} / {quantiles(functions, n=10)[-1]:.0f}",
        "5 / 15",
    )
    yield "loose modules at the top", str(len(loose)), "<= 6"
    yield "modules with exactly one user", str(len(single)), "<= 30"
    yield "of them used by another module", str(sum(m.name not in shown for m in single)), "fewer"
    yield "module names that clash", str(len(house.clashes())), "commands only"
    yield "of them not named like a command", str(len(house.clashes(commands=False))), "<= 5"
    yield "public definitions", str(sum(len(module.public) for module in house.modules)), "fewer"
    yield "names in the faces of the rooms", str(len(offered)), "~160"
    yield "tests: same name, same room", f"{same}, {seen} / {inner}", "every room mirrored"
    yield "import lines", f"{100 * imports / total:.1f} %", "less"
    for name, prepare in WALKS.items():
        call = prepare()
        with redirect_stdout(io.StringIO()):
            walk = Walk().of(call)
        yield (
            f"walk: {name}, files / depth",
            f"{len(walk.files)} / {walk.depth}",
            WANTED.get(name, "fewer"),
        )


def complaints(house: House) -> Iterator[str]:
    """Cycles, arrows and clashes: what no change may add."""
    import test_layers

    for cycle in house.cycles():
        yield f"these import one another: {', '.join(cycle)}"
    yield from test_layers.violations({m.path: test_layers.imports(m.path) for m in house.modules})
    for name, count in house.clashes(commands=False).items():
        if name not in CLASHES:
            yield f"{name}.py is the name of {count} modules; choose another"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only complain, about cycles, arrows and clashes"
    )
    house = House()
    if parser.parse_args().check:
        found = list(complaints(house))
        print(*found, sep="\n", end="\n" if found else "")
        raise SystemExit(bool(found))
    print(f"{'':34} {'now':>14}   wanted")
    for label, number, wanted in rows(house):
        print(f"{label:34} {number:>14}   {wanted}", flush=True)


if __name__ == "__main__":
    main()
