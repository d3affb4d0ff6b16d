"""An accountant that Opacus' PrivacyEngine can be given: ``engine.accountant = OpacusAccountant()``.

It is told of every optimizer step and answers with a proved upper bound; ``epsilon_bounds`` has the lower one beside
it. Histories of Opacus' own accountants can be loaded, to see what a finished run really cost.

>>> accountant = OpacusAccountant()
>>> accountant.load_state_dict({"history": [(4.0, 0.01, 10_000)], "mechanism": "rdp"})
>>> f"{accountant.get_epsilon(delta=1e-5):.3f}"
'0.947'
"""

from __future__ import annotations

import json
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
        """One optimizer step."""
        PoissonSampled(sample_rate, Gaussian(noise_multiplier))  # refuses what has no meaning
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    @property
    def event(self) -> Event:
        """All steps so far."""
        if not self.history:
            raise InvalidParameter("history", [], "is empty: nothing was released yet.")
        return Composition(
            tuple((PoissonSampled(rate, Gaussian(noise)), steps) for noise, rate, steps in self.history)
        )

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Guarantee: all steps so far are (this epsilon, delta)-DP for add-remove neighbours."""
        return self.epsilon_bounds(delta).upper

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified bounds on epsilon."""
        return account(self.event).epsilon_bounds(delta) if self.history else Bounds(0.0, 0.0)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name in saved states."""
        return "discreet"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """What Opacus attaches to its optimizer."""

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
        loaded = []
        for entry in history:
            if not (isinstance(entry, list | tuple) and len(entry) == 3):
                raise InvalidParameter("history", entry, "must be (noise multiplier, sample rate, steps).")
            rate = real("sample_rate", entry[1], above=0, at_most=1)
            noise = real("noise_multiplier", entry[0], above=0)
            loaded.append((noise, rate, whole("steps", entry[2], at_least=1)))
        self.history = loaded
