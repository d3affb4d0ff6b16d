"""Several parties, before they meet: what every observer could learn, while the sliders move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from discreet.errors import InvalidParameter, real, whole
from discreet.guarantee import Budget, rounded_up
from discreet.parties.arrangement import Arrangement
from discreet.parties.who_sees.observers import noise_for, observers

_MOST = 50


@dataclass(frozen=True)
class Together:
    """So many parties with as many records each, and what the coordinator may learn at most."""

    parties: int
    records: int
    rounds: int
    epsilon: float
    delta: float
    aggregation: str = "plain"
    colluders: int = 0

    def __post_init__(self) -> None:
        whole("parties", self.parties, at_least=2, at_most=_MOST, remedy="The page shows up to 50.")
        real("epsilon", self.epsilon, above=0, at_most=100)

    def arrangement(self) -> Arrangement:
        """What the parties would agree on, its noise still open."""
        sizes = {f"party {number}": self.records for number in range(1, self.parties + 1)}
        more = {"aggregation": self.aggregation, "colluders": self.colluders}
        return Arrangement("sgd2", sizes, rounds=self.rounds, **more)  # type: ignore[arg-type]


def together_answer(data: Any) -> dict[str, Any]:
    """Noise for the budget, and the observer table that follows."""
    try:
        wish = Together(**data)
    except TypeError as error:
        raise InvalidParameter("parties", data, f"is incomplete ({error}).") from None
    arrangement = wish.arrangement()
    budget = Budget(wish.epsilon, wish.delta, "replace-one")
    noise = noise_for(arrangement, budget, against="coordinator")
    table = observers(arrangement.with_noise(noise), delta=wish.delta)
    rows = [
        {"observer": row["observer"], "sees": row["sees"], "note": row["note"], "epsilon": _shown(row)}
        for row in table.to_dict()["observers"]
    ]
    return {"noise_multiplier": noise, "observers": rows}


def _shown(row: dict[str, Any]) -> str:
    if row.get("epsilon") is not None:
        return f"ε ≤ {rounded_up(row['epsilon'])}"
    return "no protection" if not row["note"] else "–"
