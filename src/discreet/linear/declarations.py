"""What is declared of a fit before any record is read: the parameters of an estimator, checked, as values."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator

from discreet.core.mechanisms import Arithmetic
from discreet.errors import InvalidParameter, one_of, real
from discreet.guarantee import Budget, neighbours_named
from discreet.guarantee import Unit as Protected
from discreet.linear.fitting import METHODS
from discreet.linear.glm.inference import kind_of
from discreet.linear.losses import Loss
from discreet.linear.schema import Column, Numeric, Schema, Unit, schema_of, unit_of


class Declarations(BaseEstimator):  # type: ignore[misc]
    """The parameters that all private linear models share. Refusals depend on nothing else."""

    ledger_key: Any = None
    inference: bool = False
    sample: float | None = None

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss, as far as the target is known."""

    def _unit(self) -> Unit | None:
        """Whom the guarantee is for, if not single rows: as given here, or by the schema."""
        if self.unit is not None or self.schema is None:
            return unit_of(self.unit)
        return schema_of(self.schema).unit

    def _budget(self) -> Budget:
        unit: Protected = "record" if self._unit() is None else "person"
        return Budget(self.epsilon, self.delta, neighbours_named(self.neighbours), unit=unit)

    def _chosen_arithmetic(self) -> Arithmetic:
        """As asked for; else the one whose proof covers most: hardened, where the method has it."""
        if self.arithmetic is None:
            return "hardened" if self.method == "recipe" else "float"
        asked = one_of("arithmetic", self.arithmetic, ("float", "hardened"))
        return "float" if asked == "float" else "hardened"

    def _check_method(self) -> None:
        method = one_of("method", self.method, METHODS)
        if self._unit() is not None and method != "recipe":
            raise InvalidParameter("method", method, "protects single records; a unit needs method='recipe'.")
        if self._chosen_arithmetic() == "hardened" and method != "recipe":
            raise InvalidParameter("arithmetic", "hardened", "is for method='recipe'.")
        self._sample()

    def _sample(self) -> float | None:
        """The chance of a record to be in the secret sample, if there is one."""
        if self.sample is None:
            return None
        remedy = "A share of the records, such as 0.01; without it, all of them are used."
        if self.method != "recipe":
            raise InvalidParameter("sample", self.sample, "is for method='recipe'.")
        return real("sample", self.sample, above=0, below=1, remedy=remedy)

    def _refuse_inference(self, reset: bool) -> None:
        """Raise if standard errors are asked for where there are none."""
        if not isinstance(self.inference, bool):
            raise InvalidParameter("inference", self.inference, "must be True or False.")
        if self.inference and not (
            self.method == "recipe" and kind_of(self._loss()) is not None and self.row_norm is None and reset
        ):
            requirement = "is for least squares, two classes and counts: one fit by the recipe, with columns."
            raise InvalidParameter("inference", True, requirement)

    def _target_column(self) -> Column | None:
        """The target as the schema declares it; None if it does not."""
        schema = None if self.schema is None else schema_of(self.schema)
        return None if schema is None or schema.target is None else schema.columns[schema.target]

    def _refuse_target(self, remedy: str) -> NoReturn:
        target = schema_of(self.schema).target
        raise InvalidParameter("schema.target", target, f"{target!r} {remedy}")

    def _plain_target(self) -> Column:
        """What the column of a target is where no schema says it."""
        return Numeric()

    def _settings(self) -> dict[str, Any]:
        """The parameters as declared, for the certificate. They are public."""
        hidden = {"ledger", "ledger_key", "verbose", "unsafe_seed", "memory"}
        rare = {"unit": self._unit(), "inference": self.inference, "sample": self.sample}
        hidden |= {name for name, used in rare.items() if not used}
        settings = self.get_params(deep=False) | {
            "arithmetic": self._chosen_arithmetic(),
            "unit": self._unit(),
        }
        return {name: plain(value) for name, value in settings.items() if name not in hidden}


def plain(value: Any) -> Any:
    """A declared parameter as plain data for JSON."""
    if isinstance(value, Schema | Unit):
        return value.to_dict()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)  # JSON has no such number; whoever reads the parameter refuses it by name
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
