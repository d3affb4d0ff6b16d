"""An accountant for Opacus' ``PrivacyEngine``.

    from opacus.accountants import register_accountant
    register_accountant("discreet", OpacusAccountant)        # once in a process
    engine = PrivacyEngine(accountant="discreet")            # or engine.accountant = OpacusAccountant()

It is told of every optimizer step and answers with a proved upper bound; ``epsilon_bounds`` has the lower one beside
it. Batches must be drawn by Poisson sampling: ``make_private(poisson_sampling=False)`` is refused. Histories of
Opacus' own accountants can be loaded, to see what a finished run really cost.

>>> accountant = OpacusAccountant()
>>> accountant.load_state_dict({"history": [(4.0, 0.01, 10_000)], "mechanism": "rdp"})
>>> f"{accountant.get_epsilon(delta=1e-5):.3f}"
'0.947'
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from discreet.accounting.curve import account
from discreet.errors import InvalidParameter, real, whole
from discreet.events import Composition, Event, Gaussian, PoissonSampled
from discreet.guarantee import Bounds


def read_history(text: str) -> Event:
    """The event of a history: ``accountant.state_dict()`` of Opacus, or its list of steps alone, as JSON."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidParameter("history", text, "is not the JSON of a history of Opacus.") from None
    accountant = OpacusAccountant()
    accountant.load_state_dict(state if isinstance(state, dict) else {"history": state})
    return accountant.event


class OpacusAccountant:
    """The interface of Opacus' ``IAccountant``, with add-remove neighbours and Poisson batches as Opacus has them."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []  # noise multiplier, sample rate, steps

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One optimizer step on a batch drawn by Poisson sampling.

        After a step without noise epsilon is infinite.
        """
        noise, rate, _ = _entry((noise_multiplier, sample_rate, 1))
        if self.history and self.history[-1][:2] == (noise, rate):
            self.history[-1] = (noise, rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise, rate, 1))

    @property
    def event(self) -> Event:
        """All steps so far."""
        if not self.history:
            raise InvalidParameter("history", [], "is empty: nothing was released yet.")
        if self._without_noise():
            raise InvalidParameter(
                "noise_multiplier", 0.0, "has no event: without noise, epsilon is infinite."
            )
        return Composition(
            tuple((PoissonSampled(rate, Gaussian(noise)), steps) for noise, rate, steps in self.history)
        )

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Guarantee: all steps so far are (this epsilon, delta)-DP for add-remove neighbours."""
        return self.epsilon_bounds(delta).upper

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified bounds on epsilon."""
        if not self.history:
            return Bounds(0.0, 0.0)
        if self._without_noise():
            return Bounds(0.0, math.inf)
        return account(self.event).epsilon_bounds(delta)

    def _without_noise(self) -> bool:
        return any(noise == 0 for noise, _, _ in self.history)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name in saved states."""
        return "discreet"

    def get_optimizer_hook_fn(
        self, sample_rate: float, *, poisson_sampling: bool | None = None
    ) -> Callable[[Any], None]:
        """Return the hook that Opacus attaches to its optimizer.

        ``poisson_sampling`` says that every record joins every batch independently, with chance ``sample_rate``.
        ``PrivacyEngine.make_private`` does not pass it on, so it is read from there.

        Guarantee: without Poisson sampling, or where it is not known, there is no hook: no theorem used here covers
        batches of shuffled records, and accounting for them as sampled ones would promise too much.
        """
        drawn = _of_engine() if poisson_sampling is None else poisson_sampling
        if drawn is not True:
            remedy = (
                "is needed, because shuffled batches are not as private as sampled ones. Call make_private with "
                "poisson_sampling=True, or say poisson_sampling=True here if a sampler of your own does it."
            )
            raise InvalidParameter("poisson_sampling", drawn, remedy)

        def step(optimizer: Any) -> None:
            rate = sample_rate * optimizer.accumulated_iterations
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=rate)

        return step

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """The history, to be saved."""
        state = {} if destination is None else destination
        state.update(history=list(self.history), mechanism=self.mechanism())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a history, ours or that of an accountant of Opacus."""
        history = state_dict.get("history") if isinstance(state_dict, Mapping) else None
        if not isinstance(history, list | tuple):
            raise InvalidParameter("state_dict", state_dict, "has no history to load.")
        self.history = [_entry(entry) for entry in history]


def _entry(entry: Any) -> tuple[float, float, int]:
    if not (isinstance(entry, list | tuple) and len(entry) == 3):
        raise InvalidParameter("history", entry, "must be (noise multiplier, sample rate, steps).")
    noise = real("noise_multiplier", entry[0], at_least=0)
    rate = real("sample_rate", entry[1], above=0, at_most=1)
    return noise, rate, whole("steps", entry[2], at_least=1)


def _of_engine() -> bool | None:
    """Value of ``poisson_sampling`` in the calling ``make_private``; None if there is no such caller."""
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_name == "make_private" and "poisson_sampling" in frame.f_locals:
            return bool(frame.f_locals["poisson_sampling"])
        frame = frame.f_back
    return None
