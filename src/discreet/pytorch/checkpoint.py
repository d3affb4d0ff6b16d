"""Checkpoints: tensors in a safetensors file, everything else in JSON, and nothing that could run.

A checkpoint is two files in a directory. ``run.json`` names the plan, the head of the ledger, and the digest of
the other file, which holds the tensors of model, optimizer and scheduler. The tensors are written first, under a
new name, and ``run.json`` is replaced all at once, so a crash leaves the old checkpoint or the new one.

Of a sharded model each process writes a file with its own shards, and ``run.json`` names all of them. They may be
read by another number of processes, or by one that holds the whole model.

Randomness is not part of it: a resumed run draws fresh batches and fresh noise.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from discreet.core.clipping import AdaptiveClip
from discreet.errors import InvalidParameter, PlanViolation, missing_extra
from discreet.files import digest, parse_json, read_text, write_whole
from discreet.ledger import Anchor
from discreet.pytorch.checks.state_guard import own
from discreet.pytorch.distributed import Processes

if TYPE_CHECKING:
    pass

FORMAT = "discreet checkpoint 2"
SHARDED = "discreet checkpoint 3"
"""With the tensors in several files, one for each process."""
_TEXT = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run besides its tensors. All of it is public."""

    plan: str
    step: int
    anchor: Anchor
    trusted: bool
    adaptive: AdaptiveClip | None = None
    arithmetic: str = "float"


def write(
    directory: str | Path,
    checkpoint: Checkpoint | None,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    processes: Processes,
) -> None:
    """Write a checkpoint; an older one in the same directory is replaced.

    Of a sharded model all processes write together; the first of them gives the ``checkpoint``.
    """
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": value for name, value in _state(model).items()}
    stepping = {
        "optimizer": _describe(optimizers, "optimizer", tensors),
        "scheduler": _describe(schedulers, "scheduler", tensors),
    }
    sharded = _shapes_of_shards(tensors)
    content = _safetensors().save(
        {name: own(value).detach().cpu().contiguous().clone() for name, value in tensors.items()}
    )
    tensors_digest = hashlib.sha256(content).hexdigest()
    write_whole(_file(place, tensors_digest), content)
    digests = [tensors_digest]
    if sharded:
        digests = _of_all_processes(processes, tensors_digest)
    if checkpoint is not None:
        _write_text(place, checkpoint, digests, sharded, stepping)
    if sharded:
        processes.most([0])  # nobody goes on before the checkpoint stands


def _of_all_processes(processes: Processes, digest: str) -> list[str]:
    """The digests of the files of all processes, in their order."""
    rows = torch.zeros(processes.size, len(digest), dtype=torch.int64)
    rows[processes.rank] = torch.tensor(list(digest.encode()))
    rows = processes.on_its_device(rows)
    processes.add_up(rows)
    return [bytes(row).decode() for row in rows.tolist()]


def _write_text(
    place: Path,
    checkpoint: Checkpoint,
    digests: list[str],
    sharded: dict[str, list[int]],
    stepping: dict[str, Any],
) -> None:
    """Write what is not in tensors, and let go of the files of an older checkpoint."""
    text = {
        "format": SHARDED if sharded else FORMAT,
        "plan": checkpoint.plan,
        "step": checkpoint.step,
        "anchor": asdict(checkpoint.anchor),
        "trusted": checkpoint.trusted,
        "adaptive": None if checkpoint.adaptive is None else asdict(checkpoint.adaptive),
        "tensors": digests if sharded else digests[0],
        **({"sharded": sharded} if sharded else {}),
        **({"arithmetic": checkpoint.arithmetic} if checkpoint.arithmetic != "float" else {}),
        **stepping,
    }
    write_whole(place / _TEXT, json.dumps(text | {"digest": digest(text)}, allow_nan=False).encode())
    for old in place.glob("tensors-*.safetensors"):
        if old not in [_file(place, each) for each in digests]:
            old.unlink(missing_ok=True)


def _file(place: Path, digest: str) -> Path:
    return place / f"tensors-{digest[:16]}.safetensors"


def _shapes_of_shards(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    """Of all sharded tensors the shape as a whole."""
    found = {name: value for name, value in tensors.items() if hasattr(value, "placements")}
    if found:
        from discreet.pytorch.sharded import is_shard  # which takes long to import

        for name, value in found.items():
            if not is_shard(value):
                remedy = (
                    f"keeps {name!r} sharded in another way than its parameters, which is not known here."
                )
                raise InvalidParameter("optimizer", name.partition(".")[0], remedy)
    return {name: list(value.shape) for name, value in found.items()}


def read(
    directory: str | Path,
    plan: str,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    processes: Processes,
    accept: Callable[[Checkpoint], None] = lambda found: None,
) -> Checkpoint:
    """Bring model, optimizer and scheduler back to a checkpoint of this plan; any other is refused.

    ``accept`` raises if the run refuses the checkpoint, before anything is loaded.
    """
    place = Path(directory)
    if not (place / _TEXT).is_file():
        raise InvalidParameter(
            "directory", str(directory), "holds no checkpoint; PrivateRun.save writes one."
        )
    text = parse_json(read_text(place / _TEXT), "checkpoint")
    claimed = text.pop("digest", None)
    if text.get("format") not in (FORMAT, SHARDED) or claimed != digest(text):
        raise InvalidParameter("directory", str(place), f"holds no {FORMAT!r}, or one that was altered.")
    adaptive = None if text["adaptive"] is None else AdaptiveClip(**text["adaptive"])
    found = Checkpoint(
        text["plan"],
        text["step"],
        Anchor(**text["anchor"]),
        text["trusted"] is True,
        adaptive,
        text.get("arithmetic", "float"),
    )
    if found.plan != plan:
        raise PlanViolation(
            f"The checkpoint belongs to plan {found.plan[:12]}, not {plan[:12]}. Resume with the plan it began with."
        )
    _refuse_other_kinds("optimizer", _each(text["optimizer"]), optimizers)
    _refuse_other_kinds("scheduler", _each(text["scheduler"]), schedulers)
    accept(found)
    tensors = _read_all(place, text, model, processes)
    _restore(
        model, {name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")}
    )
    for optimizer, saved in zip(optimizers, _each(text["optimizer"]), strict=True):
        optimizer.load_state_dict(_with_tensors(saved["state"], tensors))
    for scheduler, saved in zip(schedulers, _each(text["scheduler"]), strict=True):
        scheduler.load_state_dict(_with_tensors(saved["state"], tensors))
    return found


def catch_up(schedulers: Sequence[LRScheduler], kept: int, taken: int) -> None:
    """Bring schedulers that go by the step from the checkpoint's step to the last one that the ledger has granted.

    Steps that were granted and lost stay spent, so a schedule over the plan's steps would not reach its end.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Detected call of `lr_scheduler.step"
        )  # before the optimizer's first
        for scheduler in schedulers:
            if _steps_of(scheduler) == kept and not isinstance(scheduler, ReduceLROnPlateau):
                for _ in range(taken - kept):
                    scheduler.step()


def _steps_of(scheduler: LRScheduler) -> int | None:
    """Return the number of steps of a scheduler. A ``ChainedScheduler`` counts nothing itself."""
    own_count: int | None = getattr(scheduler, "last_epoch", None)
    if own_count is not None:
        return own_count
    counts = {_steps_of(part) for part in getattr(scheduler, "_schedulers", ())}
    return counts.pop() if len(counts) == 1 else None


def _describe(owners: Sequence[Optimizer | LRScheduler], name: str, tensors: dict[str, Tensor]) -> Any:
    """Nothing, the one, or a list of several."""
    names = [name] if len(owners) == 1 else [f"{name}{place}" for place in range(len(owners))]
    found = [
        {"kind": type(owner).__name__, "state": _without_tensors(owner.state_dict(), each, tensors)}
        for owner, each in zip(owners, names, strict=True)
    ]
    return found if len(found) > 1 else found[0] if found else None


def _each(described: Any) -> list[dict[str, Any]]:
    """The inverse of the last step of :func:`_describe`."""
    if described is None:
        return []
    return described if isinstance(described, list) else [described]


def _refuse_other_kinds(name: str, saved: list[dict[str, Any]], given: Sequence[object]) -> None:
    kinds, expected = (
        ", ".join(found) or None
        for found in ([type(each).__name__ for each in given], [each["kind"] for each in saved])
    )
    if kinds != expected:
        raise InvalidParameter(name, kinds, f"must be the one of the checkpoint, {expected}.")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise missing_extra("Checkpoints need safetensors", "torch") from None
    return safetensors.torch


def _read_all(place: Path, text: dict[str, Any], model: nn.Module, processes: Processes) -> dict[str, Tensor]:
    """The tensors as this model wants them: whole, or its shards."""
    mesh: Any = next((getattr(value, "device_mesh", None) for value in model.parameters()), None)
    if text["format"] == FORMAT:
        if mesh is not None:
            remedy = "holds a model that was not sharded; resume with one that is not."
            raise InvalidParameter("directory", str(place), remedy)
        return _read_tensors(place, text["tensors"])
    digests, shapes = text["tensors"], text["sharded"]
    if mesh is not None and len(digests) == processes.size:
        tensors = _read_tensors(place, digests[processes.rank])
    else:
        files = [_read_tensors(place, each) for each in digests]
        tensors = files[0] | {name: torch.cat([file[name] for file in files]) for name in shapes}
        if mesh is not None:
            tensors |= {name: tensors[name][processes.part(shape[0])] for name, shape in shapes.items()}
    if mesh is None:
        return tensors
    from discreet.pytorch.sharded import as_shard

    return tensors | {name: as_shard(tensors[name], mesh, shape) for name, shape in shapes.items()}


def _read_tensors(place: Path, expected: str) -> dict[str, Tensor]:
    try:
        content = _file(place, expected).read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != expected:
        remedy = "has lost its tensors, or they were altered; restore the directory from a backup."
        raise InvalidParameter("directory", str(place), remedy)
    tensors: dict[str, Tensor] = _safetensors().load(content)
    return tensors


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers, shared ones once."""
    lasting = model.state_dict(keep_vars=True)
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value for name, value in named if name in lasting}


def _restore(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    state = _state(model)
    ours = {name: tuple(value.shape) for name, value in state.items()}
    theirs = {name: tuple(value.shape) for name, value in tensors.items()}
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if different:
        remedy = f"does not match the checkpoint, which differs in {different[0]!r}; build the same model."
        raise InvalidParameter("model", type(model).__name__, remedy)
    with torch.no_grad():
        for name, value in state.items():
            own(value).copy_(own(tensors[name]))


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as plain data; its tensors are put aside in ``tensors`` and stand there under a name."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        kind = "counts" if isinstance(value, Counter) else "items"
        return {kind: [[key, _without_tensors(v, f"{name}.{key}", tensors)] for key, v in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_without_tensors(part, f"{name}.{index}", tensors) for index, part in enumerate(value)]
        return {type(value).__name__: parts}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}  # the best of nothing yet, in ReduceLROnPlateau
    if value is None or isinstance(value, bool | int | float | str):
        return value
    remedy = f"keeps a {type(value).__name__} in {name!r}; checkpoints hold tensors, numbers and words only."
    raise InvalidParameter(name.partition(".")[0], "state", remedy)


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`_without_tensors`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "number":
        return float(content)
    if kind in ("items", "counts"):
        found = {key: _with_tensors(part, tensors) for key, part in content}
        return found if kind == "items" else Counter(found)
    return {"list": list, "tuple": tuple}[kind](_with_tensors(part, tensors) for part in content)


Schedulers = LRScheduler | Sequence[LRScheduler] | None


def schedulers(given: Schedulers) -> tuple[LRScheduler, ...]:
    """One scheduler, several or none, as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, LRScheduler) else tuple(given)
