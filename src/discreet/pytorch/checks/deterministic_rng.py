"""Random draws held still: the same for an example alone and in a batch, whatever the size of the batch.

Dropout draws a mask for each batch, so losses with dropout cannot be compared: those of a batch with those of its
examples one by one. Under :func:`deterministic_draws` they can. Dropout lets everything pass, and every other draw
gives values that depend on the place in the code where it is made and on the position along the last dimension, and
on nothing else; so each example sees the same ones, wherever its dimension is and however many there are.

>>> with deterministic_draws():
...     alone, together = [torch.rand(count, 3) for count in (1, 5)]
...     bool((together == alone).all()), bool((alone[:, 0] == alone[:, 1]).any())
(True, False)
"""

from __future__ import annotations

import math
import random
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from discreet.pytorch.checks.seeded_generators import global_functions, seeded

GOLDEN = (math.sqrt(5.0) - 1) / 2  # multiples of it are spread evenly over the unit interval


@contextmanager
def deterministic_draws(seed: int = 0, *, varied: bool = True) -> Iterator[None]:
    """Replace draws from the global generators of torch, ``numpy.random`` and ``random`` by fixed values.

    ``seed`` chooses among such draws. Unless ``varied`` they are the same along the last dimension too, for models
    in which that is the dimension of the examples. Afterwards all generators are what they were.
    """
    place = Place(seed, entered=id(sys._getframe(2)))
    with seeded(seed), _numpy_and_random(place), _DeterministicRandomness(place, varied):
        yield


class Place:
    """A number within 0 and 1 for the place where the user's code draws.

    It is made of the calls that lead there from where the draws were held still, or from the checkpoint in between,
    because a checkpoint runs the same code once more from somewhere else.
    """

    def __init__(self, seed: int, entered: int) -> None:
        self._start, self._entered = zlib.crc32(str(seed).encode()), entered

    def __call__(self) -> float:
        frame: Any = sys._getframe(1)
        found = self._start
        while frame is not None and id(frame) != self._entered:
            module = str(frame.f_globals.get("__name__", ""))
            if module == "torch.utils.checkpoint":
                break
            if not module.startswith(("torch.", "discreet.")):
                code = frame.f_code
                here = f"{code.co_filename}:{code.co_firstlineno}:{frame.f_lasti}"
                found = zlib.crc32(here.encode(), found)
            frame = frame.f_back
        return (found + 0.5) / 2.0**32


class _DeterministicRandomness(TorchFunctionMode):
    """Replaces what was drawn by what is held still."""

    def __init__(self, place: Place, varied: bool) -> None:
        super().__init__()
        self._place, self._varied = place, varied

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PASSING:
            return _PASSING[func](func, *args, **kwargs)
        if func in _DRAWING:
            return self._replace(_DRAWING[func], func, args, kwargs)
        if isinstance(func, types.FunctionType) and (
            func.__module__.startswith("torch.nn.") or func in _DIFFERENTIATING
        ):
            with self:
                return body(func)(*args, **kwargs)
        return func(*args, **kwargs)

    @torch.no_grad()
    def _replace(self, values: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        drawn = func(*args, **kwargs)
        steady = values(self._uniform(drawn), drawn, args, kwargs)
        drawn.detach().copy_(steady)
        return drawn

    def _uniform(self, drawn: Tensor) -> Tensor:
        """Numbers within 0 and 1, in the shape of what was drawn, or in one that stretches to it."""
        start = self._place()
        if drawn.ndim < 2 or not self._varied:
            return torch.full((), start, dtype=torch.float64, device=drawn.device)
        steps = torch.arange(drawn.shape[-1], dtype=torch.float64, device=drawn.device)
        return (start + steps * GOLDEN).frac().clamp(1e-6, 1 - 1e-6)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return kwargs[name] if name in kwargs else args[place] if len(args) > place else default


def _gaussian(u: Tensor) -> Tensor:
    return math.sqrt(2.0) * torch.erfinv(2 * u - 1)


def _as_uniform(u: Tensor, drawn: Tensor, args: Any, kwargs: Any) -> Any:
    return u


def _as_gaussian(u: Tensor, drawn: Tensor, args: Any, kwargs: Any) -> Any:
    return _gaussian(u)


def _as_whole(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``randint`` and its relatives: the last two plain numbers are the limits, or the last one is the upper."""
    limits = [value for value in args if isinstance(value, int)]
    high = kwargs.get("high", limits[-1] if limits else 2)
    low = kwargs.get("low", limits[-2] if len(limits) > 1 else 0)
    return low + (u * (high - low)).floor()


def _as_random_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.random_``: without limits, whatever the type holds; small numbers are among those."""
    limits = [value for value in args[1:] if isinstance(value, int)]
    high = kwargs.get("to", limits[-1] if limits else 2)
    low = kwargs.get("from", limits[0] if len(limits) > 1 else 0)
    return low + (u * (high - low)).floor()


def _as_order(u: Tensor, drawn: Tensor, args: Any, kwargs: Any) -> Any:
    return torch.arange(len(drawn) - 1, -1, -1, dtype=drawn.dtype, device=drawn.device)


def _as_chance(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.bernoulli(p)``, and with a number behind it."""
    return u < _argument(args, kwargs, 1, "p", args[0] if args else kwargs.get("input"))


def _as_chance_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return u < _argument(args, kwargs, 1, "p", 0.5)


def _as_normal(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mean, std = _argument(args, kwargs, 0, "mean", 0.0), _argument(args, kwargs, 1, "std", 1.0)
    return mean + std * _gaussian(u)


def _as_normal_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _as_normal(u, drawn, args[1:], kwargs)


def _as_log_normal_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mean, std = _argument(args, kwargs, 1, "mean", 1.0), _argument(args, kwargs, 2, "std", 2.0)
    return torch.exp(mean + std * _gaussian(u))


def _as_uniform_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    low, high = _argument(args, kwargs, 1, "from", 0.0), _argument(args, kwargs, 2, "to", 1.0)
    return low + (high - low) * u


def _as_exponential_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return -torch.log1p(-u) / _argument(args, kwargs, 1, "lambd", 1.0)


def _as_cauchy_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    median, sigma = _argument(args, kwargs, 1, "median", 0.0), _argument(args, kwargs, 2, "sigma", 1.0)
    return median + sigma * torch.tan(math.pi * (u - 0.5))


def _as_geometric_(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return torch.ceil(torch.log1p(-u) / math.log1p(-float(_argument(args, kwargs, 1, "p", 0.5))))


def _as_choices(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``multinomial``: the likeliest without replacement, else by the cumulative chances."""
    chances = args[0] if args else kwargs["input"]
    if not _argument(args, kwargs, 2, "replacement", False):
        return chances.topk(drawn.shape[-1]).indices
    cumulated = chances.double().cumsum(-1)
    wanted = u.expand(drawn.shape).contiguous() * cumulated[..., -1:]
    return torch.searchsorted(cumulated, wanted).clamp_(max=chances.shape[-1] - 1)


def _as_expected(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``poisson(rate)`` and gamma variables of scale one: about their mean."""
    return args[0].round() if not drawn.is_complex() else args[0]


def _as_binomial(u: Tensor, drawn: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (_argument(args, kwargs, 0, "count", None) * _argument(args, kwargs, 1, "prob", None)).round()


_DRAWING: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.rand, torch.rand_like), _as_uniform),
    **dict.fromkeys((torch.randn, torch.randn_like), _as_gaussian),
    **dict.fromkeys((torch.randint, torch.randint_like), _as_whole),
    torch.randperm: _as_order,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _as_chance),
    torch.normal: _as_normal,
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _as_choices),
    torch.poisson: _as_expected,
    torch.binomial: _as_binomial,
    Tensor.bernoulli_: _as_chance_,
    Tensor.normal_: _as_normal_,
    Tensor.log_normal_: _as_log_normal_,
    Tensor.uniform_: _as_uniform_,
    Tensor.exponential_: _as_exponential_,
    Tensor.cauchy_: _as_cauchy_,
    Tensor.geometric_: _as_geometric_,
    Tensor.random_: _as_random_,
}

_DIFFERENTIATING: set[Any] = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}
"""They run checkpoints again, and what is drawn there is to be held still too."""


def _whole(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Dropout as the identity; a copy, as code that goes on in place expects one in training."""
    inplace = kwargs.get("inplace", False) or str(func.__name__).endswith("_")
    return input if inplace else input.clone()


def _whole_or_inplace(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    inplace = args[2] if len(args) > 2 else kwargs.get("inplace", False)
    return input if inplace else input.clone()


def _attention(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    kept = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
    found: Tensor = func(*kept, **{k: v for k, v in kwargs.items() if k != "dropout_p"})
    return found


def _recurrent(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Of all arguments the share that is dropped between layers is the only one that is a float."""
    return func(*(0.0 if isinstance(value, float) else value for value in args), **kwargs)


def _leaky(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    lower, upper = _argument(args, kwargs, 0, "lower", 1 / 8), _argument(args, kwargs, 1, "upper", 1 / 3)
    return func(input, lower, upper, False)


def _gamma(func: Any, shape: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return shape.clone()


def _dirichlet(func: Any, shape: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return shape / shape.sum(-1, keepdim=True)


_PASSING: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            functional.dropout,
            functional.dropout1d,
            functional.dropout2d,
            functional.dropout3d,
            functional.alpha_dropout,
            functional.feature_alpha_dropout,
        ),
        _whole_or_inplace,
    ),
    **{
        getattr(torch, name + end): _whole
        for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
        for end in ("", "_")
    },
    functional.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    **dict.fromkeys((torch.rrelu, torch.rrelu_), _leaky),
    torch._standard_gamma: _gamma,
    torch._sample_dirichlet: _dirichlet,
}


_ORDERS = ("permutation", "shuffle")


@contextmanager
def _numpy_and_random(place: Place) -> Iterator[None]:
    """Their functions draw anew at every call, from a generator that the place in the code decides."""
    replaced = global_functions()
    try:
        for owner, name, _ in replaced:
            setattr(
                owner,
                name,
                _drawn_by_numpy(name, place) if owner is np.random else _deterministic_draw(name, place),
            )
        yield
    finally:
        for owner, name, before in replaced:
            setattr(owner, name, before)


def _drawn_by_numpy(name: str, place: Place) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        generator = np.random.RandomState(int(place() * 2**32))
        found = getattr(generator, name)(*args, **kwargs)
        if isinstance(found, np.ndarray) and found.ndim and len(found) and name not in _ORDERS:
            found[...] = found[:1]  # rows are filled one after the other, so the first knows of no other
        return found

    return draw


def _deterministic_draw(name: str, place: Place) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        found = getattr(random.Random(place()), name)(*args, **kwargs)
        return found[:1] * len(found) if name == "choices" else found

    return draw


_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_BODIES: dict[Any, Callable[..., Any]] = {}


def body(func: Any) -> Callable[..., Any]:
    """Return the code of ``func`` without the question whether a function mode overrides it; of a choice, of both.

    Many functions of torch are Python code that first hands itself to the function modes in force. A mode that has to
    see the calls inside of such a function runs this body instead.
    """
    if func not in _BODIES:
        namespace = func.__globals__ | dict.fromkeys(_QUESTIONS, _no)
        closure = func.__closure__ and tuple(types.CellType(_inside(cell)) for cell in func.__closure__)
        made = types.FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, closure)
        made.__kwdefaults__ = func.__kwdefaults__
        _BODIES[func] = made
    return _BODIES[func]


def _inside(cell: Any) -> Any:
    content = cell.cell_contents
    of_torch = isinstance(content, types.FunctionType) and content.__module__ == "torch.nn.functional"
    return body(content) if of_torch else content


def _no(*_: Any) -> bool:
    return False
