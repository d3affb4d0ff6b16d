"""Several data holders train one model together, and each keeps its records."""

from discreet.parties.arrangement import Arrangement
from discreet.parties.coordinator import Coordinator, Progress, StudyResult
from discreet.parties.messages import Holder, Transport
from discreet.parties.notes import sgd1_noise_std
from discreet.parties.observation.observers import noise_for, observers
from discreet.parties.party import Party
from discreet.parties.rehearsal import rehearse
from discreet.parties.study import Study

__all__ = [
    "Arrangement",
    "Coordinator",
    "Holder",
    "Party",
    "Progress",
    "Study",
    "StudyResult",
    "Transport",
    "noise_for",
    "observers",
    "rehearse",
    "sgd1_noise_std",
]
