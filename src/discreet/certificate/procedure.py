"""What was carried out: a plan, or a procedure that chooses its releases along the way under a rule.

>>> from discreet.guarantee import Budget
>>> from discreet.ledger import GaussianFilter
>>> fit = Procedure("logistic regression", {"steps": 40}, GaussianFilter(Budget(epsilon=1.0, delta=1e-6)))
>>> Procedure.from_dict(fit.to_dict()) == fit
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from discreet.documents import digest
from discreet.errors import InvalidParameter
from discreet.ledger import SpendingRule
from discreet.plan.plan import Plan

FORMAT = "discreet procedure 1"


@dataclass(frozen=True)
class Procedure:
    """A procedure by its name, its public settings, and the rule by which it spends.

    The settings are declared numbers and words, never anything that was computed from private records.
    """

    name: str
    settings: Mapping[str, Any]
    rule: SpendingRule

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and 0 < len(self.name) <= 200):
            raise InvalidParameter("name", self.name, "must be a few words, such as 'logistic regression'.")
        if not isinstance(self.rule, SpendingRule):
            raise InvalidParameter(
                "rule", self.rule, "must be a spending rule, such as GaussianFilter(budget)."
            )
        try:
            settings = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InvalidParameter(
                "settings", self.settings, f"must be plain data for JSON ({error})."
            ) from None
        object.__setattr__(self, "settings", settings)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name of this procedure in ledgers and certificates."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The procedure as plain data."""
        return {"format": FORMAT, "name": self.name, "settings": self.settings, "rule": self.rule.to_dict()}

    @classmethod
    def from_dict(cls, data: object) -> Procedure:
        """The inverse of :meth:`to_dict`; anything else is refused."""
        fields = dict(data) if isinstance(data, dict) else {}
        if fields.pop("format", None) != FORMAT or set(fields) != {"name", "settings", "rule"}:
            raise InvalidParameter("procedure", data, f"is not a {FORMAT!r}.")
        return cls(fields["name"], fields["settings"], SpendingRule.from_dict(fields["rule"]))


def procedure_from(data: object) -> Plan | Procedure:
    """A plan or a procedure, whichever the data say."""
    kind = str(data.get("format")) if isinstance(data, dict) else ""
    return Procedure.from_dict(data) if kind == FORMAT else Plan.from_dict(data)
