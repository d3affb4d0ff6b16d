"""The arrows of the design: imports point left only, and heavy packages stay in their own room."""

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "discreet"

# The one list of arrows: a room may import those before it. Rooms of one line do not import one another.
ORDER = (
    ("error_texts", "leftovers"),
    ("errors", "numba_cache", "engines", "guarantee_text"),
    ("files",),
    ("folders",),
    ("charts",),
    ("guarantee", "events"),
    ("accounting",),
    ("core", "ledger", "compat"),
    ("plan",),
    ("certificate",),
    ("trusted",),
    ("selection", "linear", "pytorch", "parties"),
    ("statistics",),
    ("evaluation",),
    ("audit",),
    ("report",),
    ("lecture",),
    ("adapters",),
    ("studio",),
    ("cli",),
    ("__main__",),
)
ALLOWED = {
    room: {earlier for line in ORDER[:place] for earlier in line}
    for place, line in enumerate(ORDER)
    for room in line
}
ENGINES = {"linear", "pytorch", "parties", "statistics", "evaluation"}
ALLOWED["audit"] -= ENGINES  # it attacks whatever it is given
ALLOWED["report"] -= ENGINES | {"audit"}
NUMERICS = {"numpy", "scipy"}
THIRD_PARTY = dict.fromkeys(ALLOWED, NUMERICS) | {
    "core": NUMERICS | {"numba", "cryptography"},
    "ledger": {"sqlalchemy", "psycopg"},
    "certificate": {"cryptography"},
    "linear": NUMERICS
    | {
        "numba",
        "llvmlite",
        "sklearn",
        "rich",
        "safetensors",
        "pyarrow",
        "pandas",
        "onnx",
        "cryptography",
        "matplotlib",
    },
    "pytorch": NUMERICS | {"numba", "llvmlite", "torch", "safetensors", "rich"},
    "parties": NUMERICS | {"cryptography", "nvflare", "rich"},
    "adapters": NUMERICS
    | {"torch", "transformers", "accelerate", "lightning", "distributed", "nvflare", "flwr"},
    "audit": NUMERICS | {"rich"},
    "report": NUMERICS | {"jinja2"},
    "lecture": NUMERICS | {"matplotlib"},
    "studio": NUMERICS | {"jinja2", "starlette", "uvicorn"},
    "cli": NUMERICS | {"click", "rich", "pyarrow", "cryptography"},
}
ONLY_IN = {
    "nvflare": (
        *(f"parties/network/{name}.py" for name in ("nvflare", "sites", "connections", "channels", "kits")),
        "adapters/flare_site.py",
    ),
    "flwr": ("adapters/flower_site.py",),
    "matplotlib": ("lecture/figures/", "linear/additive/pictures.py"),
    "transformers": ("adapters/hugging_face.py",),
    "accelerate": ("adapters/hugging_face.py", "adapters/accelerated.py"),
    "lightning": ("adapters/lightning_module.py",),
    "distributed": ("adapters/dask_engine.py",),
}
"""Packages that a few thin files know."""

STUDENTS = {"lecture", "studio", "cli", "__main__", "adapters/audit_subjects.py"}
"""Who may import the lectures' room: the audit command attacks the lectures' descent too."""

SEAMS = {"linear/fitting.py": "discreet.lecture.erm"}
"""The one place where product code names the lectures' room: the methods with theorems, loaded when asked for."""

MOVED = {
    "core/mean.py": "discreet.statistics.mean",
    "core/mechanisms.py": "discreet.statistics.noise_mechanisms",
}
"""Deprecated names, which load their new place when asked for."""


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= (
                {f"discreet.{alias.name}" for alias in node.names}
                if node.module == "discreet"
                else {str(node.module)}
            )
    return found


def violations(source: dict[Path, set[str]]) -> list[str]:
    wrong = []
    for path, names in source.items():
        here = room(path)
        if here == "__init__":
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "discreet":
                there = rest[0] if rest else "__init__"
                if there not in {here, "__version__"} and there not in ALLOWED.get(here, set()):
                    wrong.append(f"{here} imports {there}")
            elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(here, set()):
                wrong.append(f"{here} imports {top}")
    return wrong


def test_arrows_point_left():
    source = {path: imports(path) for path in SOURCE.rglob("*.py")}
    assert len(source) > 4
    assert violations(source) == []


def strays(source: dict[Path, set[str]]) -> list[str]:
    return [
        f"{where} imports {top}"
        for path, names in source.items()
        for top in {name.split(".")[0] for name in names} & set(ONLY_IN)
        if not (where := path.relative_to(SOURCE).as_posix()).startswith(ONLY_IN[top])
    ]


def test_a_package_of_others_is_known_to_a_few_files_only():
    assert strays({path: imports(path) for path in SOURCE.rglob("*.py")}) == []
    assert strays({SOURCE / "parties/party.py": {"nvflare.apis"}}) == ["parties/party.py imports nvflare"]


def test_the_check_catches_a_backward_arrow():
    broken = {SOURCE / "events.py": {"discreet.accounting.curve", "torch"}}
    assert sorted(violations(broken)) == ["events imports accounting", "events imports torch"]
    assert violations({SOURCE / "linear/fitting.py": {"discreet.lecture.erm"}}) == ["linear imports lecture"]


def named(path: Path) -> set[str]:
    """Modules of ours that a file names by a string, as ``import_module`` takes them."""
    found = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {name for name in found if re.fullmatch(r"discreet(\.\w+)+", name)}


def test_imports_by_string_point_left_too():
    """But for the methods with theorems; the package itself, which knows all of its rooms, is not asked."""
    source = {path: named(path) for path in SOURCE.rglob("*.py")}
    for where, name in {**SEAMS, **MOVED}.items():
        source[SOURCE / where] -= {name}
    assert any(source.values())
    assert violations(source) == []
    assert violations({SOURCE / "linear/base.py": {"discreet.adapters.dask_engine"}}) == [
        "linear imports adapters"
    ]


def addresses(tree: ast.Module) -> set[str]:
    """The modules of the lectures' room that a file names in strings, docstrings and messages apart."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and text.startswith("discreet.lecture")}


def test_product_code_never_imports_the_lectures():
    users = {
        where
        for path in SOURCE.rglob("*.py")
        if any(name.startswith("discreet.lecture") for name in imports(path))
        and not {room(path), where := path.relative_to(SOURCE).as_posix()} & STUDENTS
    }
    assert users == set()


def test_product_code_names_the_lectures_in_one_place_only():
    product = [path for path in SOURCE.rglob("*.py") if room(path) not in STUDENTS]
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in product
        if (names := addresses(ast.parse(path.read_text())))
    }
    assert found == {place: {address} for place, address in SEAMS.items()}


def test_the_methods_with_theorems_are_those_of_the_lectures():
    from discreet.lecture.erm import METHODS
    from discreet.linear.fitting import METHODS as OFFERED

    assert ("recipe", *METHODS) == OFFERED
    assert all(hasattr(importlib.import_module(address), "private_minimiser") for address in SEAMS.values())


PRODUCT = """
import json, sys
import discreet.audit, discreet.linear, discreet.parties, discreet.pytorch, discreet.report
for room in (discreet.linear, discreet.pytorch, discreet.parties, discreet.audit, discreet.report):
    for name in room.__all__:
        getattr(room, name)
print(json.dumps([name for name in sys.modules if name.startswith("discreet.lecture")]))
"""


def test_the_product_runs_without_the_lectures():
    done = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
