"""Mutation testing of the trusted files. Run with ``make mutants``.

Each mutant changes one operator, constant, condition or statement of a trusted file. The tests of that file run
against it; a mutant that no test fails is a survivor. Survivors with a known reason are listed in
``benchmarks/mutants.toml``; any other one is printed and makes the run fail.

A parent process imports what all tests need and forks one child per mutant, in which the mutated source replaces the
file's, so that no mutant is ever written to disk.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import io
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "discreet"
REASONS = Path(__file__).with_suffix(".toml")

TESTS = {
    "trusted": [
        "tests/trusted",
        "tests/statistics/test_bounded_sums.py",
        "tests/statistics/test_quantiles.py",
    ],
    "core/noise": ["tests/core/test_noise.py", "tests/core/test_hardened.py"],
    "core/clipping": ["tests/core/test_clipping.py"],
    "core/choice": ["tests/core/test_choice.py"],
    "ledger": ["tests/ledger"],
    "linear/gate": ["tests/linear/gate", "tests/linear/glm/test_sensitivity.py"],
}
"""Tests by the beginning of a file's path: the first that fits is taken."""

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"max": "min", "min": "max", "ceil": "floor", "floor": "ceil", "all": "any", "any": "all"}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a file."""

    path: Path
    line: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        """A name that survives changes of other lines."""
        return f"{self.path.relative_to(SOURCE)}: {self.before} -> {self.after}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its nodes."""
    tree = ast.parse(path.read_text())
    skipped = set(_skipped(tree))
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for edit in range(len(_edits(node))):
            other = copy.deepcopy(tree)
            twin = next(one for place, one in enumerate(ast.walk(other)) if place == number)
            before = ast.unparse(twin).splitlines()[0]
            after = _edits(twin)[edit]()
            if isinstance(after, ast.AST):
                _replace(other, twin, after)
                twin = after
            ast.fix_missing_locations(other)
            yield Mutant(
                path,
                getattr(node, "lineno", 0),
                before,
                ast.unparse(twin).splitlines()[0],
                ast.unparse(other),
            )


def _skipped(tree: ast.Module) -> Iterator[int]:
    """Annotations, docstrings, words of errors, decorators and exported names: no behaviour depends on them."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts = [node]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [*node.decorator_list, *([node.returns] if node.returns else [])]
            parts += [
                arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg) and arg.annotation
            ]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [*node.exc.args]
        elif isinstance(node, ast.JoinedStr) or _exports(node):
            parts = [node]
        for part in parts:
            yield from (id(one) for one in ast.walk(part))


def _exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__slots__", "__all__")


def _edits(node: ast.AST) -> list:
    """Functions that change the node in place, or return the node that takes its place."""
    edits = []
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in COMPARISONS:
                edits.append(lambda n=node, p=place, o=operator: n.ops.__setitem__(p, COMPARISONS[type(o)]()))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        edits.append(lambda n=node: setattr(n, "op", OPERATORS[type(n.op)]()))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        edits.append(lambda n=node: setattr(n, "op", other()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        edits.append(lambda n=node: n.operand)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            edits.append(lambda n=node: setattr(n, "value", not n.value))
        elif isinstance(node.value, int | float):
            edits.append(lambda n=node: setattr(n, "value", n.value + 1))
    elif isinstance(node, ast.If | ast.IfExp):
        edits.append(lambda n=node: setattr(n, "test", ast.Constant(True)))
        edits.append(lambda n=node: setattr(n, "test", ast.Constant(False)))
    elif isinstance(node, ast.Call):
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", None)
        if name in FUNCTIONS:
            key = "id" if isinstance(function, ast.Name) else "attr"
            edits.append(lambda f=function, k=key, w=name: setattr(f, k, FUNCTIONS[w]))
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        edits.append(ast.Pass)
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        edits.append(lambda n=node: setattr(n, "op", OPERATORS[type(n.op)]()))
    return edits


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(one is old for one in value):
                value[:] = [new if one is old else one for one in value]


class _Loader(importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def exec_module(self, module) -> None:
        exec(compile(self.mutant.source, str(self.mutant.path), "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Gives the mutated source to whoever imports the file."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.module = mutant, module_of(mutant.path)

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.module:
            return None
        where = [str(self.mutant.path.parent)] if self.mutant.path.stem == "__init__" else None
        spec = importlib.util.spec_from_loader(fullname, _Loader(self.mutant), origin=str(self.mutant.path))
        if where:
            spec.submodule_search_locations = where
        return spec


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tests_of(path: Path) -> list[str]:
    place = path.relative_to(SOURCE).with_suffix("").as_posix()
    return next(tests for start, tests in TESTS.items() if place.startswith(start))


def survives(mutant: Mutant | None, path: Path, seconds: float) -> bool:
    """Whether all tests of the file pass with the mutant, in a forked child, which is killed if it takes too long."""
    child = os.fork()
    if child == 0:
        _run(mutant, path)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run(mutant: Mutant | None, path: Path) -> None:
    """Run the tests in this process and end it with their exit code."""
    code = 70
    try:
        os.setpgid(0, 0)
        for name in [name for name in sys.modules if name.partition(".")[0] == "discreet"]:
            del sys.modules[name]
        if mutant is not None:
            sys.meta_path.insert(0, _Finder(mutant))
        import pytest

        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore"]
            code = int(pytest.main([*options, *tests_of(path)]))
    except BaseException:
        code = 71
    finally:
        os._exit(code)


def known_reasons() -> dict[str, str]:
    return {
        entry["mutant"]: entry["reason"] for entry in tomllib.loads(REASONS.read_text()).get("survivors", [])
    }


def main() -> None:
    from discreet.trusted import TRUSTED_FILES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "files", nargs="*", default=["trusted"], help="beginnings of paths, such as linear/gate"
    )
    parser.add_argument("--sample", type=int, help="try so many mutants, chosen at random, instead of all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="after which a mutant counts as killed")
    given = parser.parse_args()
    os.chdir(ROOT)
    trusted = [SOURCE / package / f"{name}.py" for package, names in TRUSTED_FILES.items() for name in names]
    paths = [one for one in trusted if one.relative_to(SOURCE).as_posix().startswith(tuple(given.files))]
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    if given.sample is not None:
        mutants = random.sample(mutants, min(given.sample, len(mutants)))
    for name in (
        "numpy",
        "scipy.stats",
        "scipy.sparse",
        "hypothesis",
        "pytest",
        "numba",
        "sklearn",
        "pandas",
    ):
        importlib.import_module(name)  # once, for all children
    for path in {tuple(tests_of(one)): one for one in paths}.values():
        if not survives(None, path, given.seconds):
            sys.exit(f"The tests {tests_of(path)} fail without a mutant.")
    print(f"{len(mutants)} mutants of {len(paths)} files", flush=True)
    reasons, survivors = known_reasons(), []
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = pool.map(lambda mutant: survives(mutant, mutant.path, given.seconds), mutants)
        for mutant, alive in zip(mutants, outcomes, strict=True):
            if alive:
                survivors.append(mutant)
                said = f"{mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.before}  ->  {mutant.after}"
                print(f"{said}   ({reasons.get(mutant.name, 'SURVIVES')})", flush=True)
    unexplained = [mutant for mutant in survivors if mutant.name not in reasons]
    killed = len(mutants) - len(survivors)
    print(
        f"killed {killed} of {len(mutants)} ({killed / max(1, len(mutants)):.1%}); survivors without a reason: ",
        end="",
    )
    print(len(unexplained))
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
