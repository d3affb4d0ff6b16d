"""The arrows of the design: imports point left only, and heavy packages stay in their own room."""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "discreet"

# What each room may import of the others. A room that is missing here may import nothing.
PROOF = ["errors", "guarantee", "events", "accounting", "calibration"]
CHANCE = ["arrays", "draws", "discrete", "randomness", "noise", "hardened", "clipping", "sampling"]
ALLOWED = {name: set(PROOF[:index]) for index, name in enumerate(PROOF)} | {
    "compat": {*PROOF},
    "arrays": {"errors"},
    "draws": set(),
    "discrete": {"errors", "draws"},
    "randomness": {"errors", "draws", "discrete"},
    "noise": {"errors", "events", "arrays", "randomness"},
    "hardened": {"errors", "events", "arrays", "noise"},
    "clipping": {"errors", "events"},
    "sampling": {"errors", "events", "randomness"},
    "mechanisms": {*PROOF, *CHANCE},
    "mean": {*PROOF, *CHANCE, "mechanisms"},
    "stage": {"errors", "events", "clipping", "sampling", "randomness"},
    "documents": {"errors"},
    "files": set(),
    "explanation": {"guarantee", "stage"},
    "plan": {*PROOF, "sampling", "stage", "documents", "files", "explanation", "ledger"},
    "recipe": {*PROOF, "sampling", "stage", "plan"},
    "prices": {*PROOF, "clipping", "stage", "plan"},
    "explore": {*PROOF, "stage", "explanation", "plan", "recipe", "prices"},
    "trials": {"errors", "accounting", "randomness"},
    "selection": {*PROOF, "randomness", "trials", "ledger"},
    "ledger": {*PROOF, "files"},
    "certificate": {*PROOF, "documents", "files", "explanation", "plan", "ledger"},
    "linear": {
        *PROOF,
        *CHANCE,
        "mechanisms",
        "documents",
        "files",
        "stage",
        "plan",
        "recipe",
        "ledger",
        "certificate",
        "selection",
    },
    "pytorch": {*PROOF, *CHANCE, "documents", "files", "stage", "plan", "recipe", "ledger", "certificate"},
    "parties": {*PROOF, *CHANCE, "documents", "files", "stage", "plan", "recipe", "ledger", "certificate"},
    "audit": {*PROOF, *CHANCE, "documents", "stage", "plan", "ledger", "certificate"},
    "report": {*PROOF, "documents", "files", "explanation", "stage", "plan", "ledger", "certificate"},
}
ALLOWED["adapters"] = {*ALLOWED}  # where engines, and the audit, meet
ROOMS = {*ALLOWED}
ALLOWED |= {
    "figures": ROOMS,
    "studio": ROOMS,
    "cli": {*ROOMS, "figures", "studio"},
    "__main__": {"cli"},
}
NUMERICS = {"numpy", "scipy"}
THIRD_PARTY = dict.fromkeys(ALLOWED, NUMERICS) | {
    "draws": NUMERICS | {"numba"},
    "discrete": NUMERICS | {"numba"},
    "clipping": NUMERICS | {"numba"},
    "randomness": NUMERICS | {"cryptography"},
    "ledger": {"sqlalchemy", "psycopg"},
    "certificate": {"cryptography"},
    "linear": NUMERICS
    | {"numba", "llvmlite", "sklearn", "rich", "safetensors", "pyarrow", "pandas", "cryptography"},
    "pytorch": NUMERICS | {"numba", "llvmlite", "torch", "safetensors", "rich"},
    "parties": NUMERICS | {"cryptography", "nvflare", "rich"},
    "audit": NUMERICS | {"rich"},
    "report": NUMERICS | {"jinja2"},
    "figures": NUMERICS | {"matplotlib"},
    "studio": NUMERICS | {"jinja2", "starlette", "uvicorn"},
    "cli": NUMERICS | {"click", "rich", "pyarrow", "cryptography"},
}
ONLY_IN = {"nvflare": {f"parties/{name}.py" for name in ("nvflare", "sites", "doors", "kits")}}
"""Packages that a few thin files know."""


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
                if there != here and there not in ALLOWED.get(here, set()):
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
        if (where := path.relative_to(SOURCE).as_posix()) not in ONLY_IN[top]
    ]


def test_an_engine_of_others_is_known_to_a_few_files_only():
    assert strays({path: imports(path) for path in SOURCE.rglob("*.py")}) == []
    assert strays({SOURCE / "parties/party.py": {"nvflare.apis"}}) == ["parties/party.py imports nvflare"]


def test_the_check_catches_a_backward_arrow():
    broken = {SOURCE / "events.py": {"discreet.accounting.account", "torch"}}
    assert sorted(violations(broken)) == ["events imports accounting", "events imports torch"]
