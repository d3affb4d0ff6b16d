"""Our cases in the language of dp-accounting and Opacus, with the settings that those two ship with."""

from __future__ import annotations

import dp_accounting as dpa
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier

import discreet
from accounting_cases import Calibration, Case

RELATIONS = {"add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}


def pld(case: Case) -> float:
    """dp-accounting, privacy-loss distributions."""
    accountant = dpa.pld.PLDAccountant(dpa.NeighboringRelation[RELATIONS[case.neighbours]])
    for event, count in case.event.parts():
        accountant.compose(_dpa_event(event), count)
    return float(accountant.get_epsilon(case.delta))


def _dpa_event(event: discreet.Event) -> dpa.DpEvent:
    if isinstance(event, discreet.PoissonSampled):
        return dpa.PoissonSampledDpEvent(event.rate, _dpa_event(event.of))
    if isinstance(event, discreet.Laplace):
        return dpa.LaplaceDpEvent(event.scale)
    return dpa.GaussianDpEvent(event.noise_multiplier)


def prv(case: Case) -> float | None:
    """Opacus, privacy random variables."""
    return _opacus(PRVAccountant(), case)


def rdp(case: Case) -> float | None:
    """Opacus, Rényi accountant."""
    return _opacus(RDPAccountant(), case)


def _opacus(accountant: PRVAccountant | RDPAccountant, case: Case) -> float | None:
    """None where Opacus has no such mechanism: it knows Poisson-sampled Gaussians under add-remove only."""
    history = []
    for event, count in case.event.parts():
        noise = event.of if isinstance(event, discreet.PoissonSampled) else event
        if not isinstance(noise, discreet.Gaussian) or case.neighbours != "add-remove":
            return None
        history.append((noise.noise_multiplier, getattr(event, "rate", 1.0), count))
    accountant.history = history
    return float(accountant.get_epsilon(case.delta))


def calibrated_pld(case: Calibration) -> float:
    """dp-accounting from a good bracket: its own starts at noise 0, where a distribution is very large."""

    def event(noise: float) -> dpa.DpEvent:
        step = dpa.PoissonSampledDpEvent(case.rate, dpa.GaussianDpEvent(noise))
        return dpa.SelfComposedDpEvent(step, case.steps)

    start = dpa.LowerEndpointAndGuess(0.4, 1.0)
    return dpa.calibrate_dp_mechanism(
        dpa.pld.PLDAccountant, event, case.epsilon, case.delta, bracket_interval=start, tol=1e-3
    )


def calibrated_prv(case: Calibration) -> float:
    """Opacus with its default tolerance of 0.01 in epsilon."""
    return get_noise_multiplier(
        target_epsilon=case.epsilon,
        target_delta=case.delta,
        sample_rate=case.rate,
        steps=case.steps,
        accountant="prv",
    )
