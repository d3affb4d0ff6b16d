"""Modules that adapt to a package are looked through for examples only where it is installed."""

from importlib.util import find_spec

ADAPTERS = {
    "hugging_face.py": "accelerate",
    "accelerated.py": "accelerate",
    "lightning_module.py": "lightning",
}

collect_ignore = [
    f"src/discreet/adapters/{name}" for name, package in ADAPTERS.items() if find_spec(package) is None
]
