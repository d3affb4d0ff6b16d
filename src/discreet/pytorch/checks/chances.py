"""How many examples of a step are compared with themselves alone, and how often.

In each of the first :data:`FIRST_STEPS` steps :data:`FIRST_EXAMPLES` examples of the batch are worked on alone before
the step is paid for, later one example. A fault that reaches a share p of the examples of a step stays unseen there
with chance (1 - p)^k if k of them are compared, since nobody can foresee which. Later steps are compared at random:
all of them where that takes at most :data:`SHARE` of their time, otherwise as many as take that share, and never
fewer than one in :data:`AT_LEAST`.

>>> all(place < 5 for place in chosen_places(1, 5)), len(chosen_places(1, 100)), len(chosen_places(21, 100))
(True, 8, 1)
"""

from __future__ import annotations

import secrets

FIRST_STEPS = 20
FIRST_EXAMPLES = 8
AT_LEAST = 16
SHARE = 0.02
NORMS = 8
"""After the first steps the norm is compared in one of so many comparisons; the loss in all of them."""
DETERMINISTIC_STEPS = 2
DETERMINISTIC = 64
"""Where random numbers are drawn: compared in the first STEADY_STEPS steps and in one of STEADY."""

_SYSTEM = secrets.SystemRandom()


def chosen_places(step: int, count: int) -> tuple[int, ...]:
    """The places of the examples to compare in a step, among ``count``: different ones, all equally likely."""
    wanted = FIRST_EXAMPLES if step <= FIRST_STEPS else 1
    return tuple(_SYSTEM.sample(range(count), min(wanted, count)))


def deterministic_check_is_due(step: int) -> bool:
    """Whether this step is compared where random numbers are drawn."""
    return step <= DETERMINISTIC_STEPS or one_in(DETERMINISTIC)


def one_in(number: float) -> bool:
    """True with chance 1 / ``number``, which nobody can foresee."""
    return secrets.randbits(53) * number < 2.0**53


DESCRIPTION = (
    f"in each of the first {FIRST_STEPS} steps, {FIRST_EXAMPLES} examples of the batch, chosen by the operating "
    "system's randomness, were computed alone before the step was paid for, and their losses and gradient norms "
    f"compared with those of the step; later 1 example, in at least one step of {AT_LEAST} and in every step where "
    f"that takes at most {SHARE:.0%} of its time, with its norm in one of {NORMS}. A fault that reaches a share p of "
    "the examples of a step stays unseen in a comparison of k examples with chance (1 - p)^k"
)
DETERMINISTIC_DESCRIPTION = (
    f"where the model or collate draws random numbers, and for sharded models, the comparison was made under fixed "
    f"draws instead, with 2 examples, in the first {DETERMINISTIC_STEPS} steps and in one step of {DETERMINISTIC}"
)
