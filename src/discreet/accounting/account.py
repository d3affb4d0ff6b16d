"""``account(event)``: what does this release cost?

>>> from discreet.events import Gaussian, PoissonSampled
>>> step = PoissonSampled(rate=0.01, of=Gaussian(noise_multiplier=4.0))
>>> curve = account(step * 10_000)
>>> round(curve.epsilon(delta=1e-5), 2)
0.95
"""

from __future__ import annotations

from discreet.accounting.curve import PrivacyCurve
from discreet.errors import InvalidParameter
from discreet.events import Event
from discreet.guarantee import AnyNeighbours


def account(event: Event, neighbours: AnyNeighbours = "add-remove", group_size: int = 1) -> PrivacyCurve:
    """The certified privacy curve of ``event``.

    ``neighbours`` says which data sets must look alike: with and without one record (``"add-remove"``), or with
    one record exchanged (``"replace-one"``); or, of curves only, with one record that counts for nothing in one of
    them (``"zero-out"``). ``group_size`` protects that many records of one person together:
    all of them join or leave (or are exchanged), each sampled on its own.

    Combinations without a proved theorem raise :class:`~discreet.errors.UnsupportedEvent`.
    """
    if not isinstance(event, Event):
        raise InvalidParameter(
            "event", event, "must be an event, for instance Gaussian(noise_multiplier=1.0)."
        )
    return PrivacyCurve(event, neighbours, group_size)
