"""Audits: attack a running procedure and compare its leakage with its claim.

* :func:`audit` bounds epsilon from below, by :class:`OneStep`, :class:`GradientCanaries` or :class:`ModelCanaries`;
* :func:`examine` looks for mistakes that no attack on canaries sees, in whatever a :class:`Subject` hands in. Its
  parts: :func:`conformance` (the noise), :func:`replay` (the sensitivity), :func:`sampler_test` (the batches);
* :func:`membership` compares an attack on a released model with the certified region.

Nothing here imports an engine: the subject is a function of yours.
"""

from discreet.audit.audit import AuditResult, audit
from discreet.audit.canaries import GradientCanaries, ModelCanaries
from discreet.audit.conformance import conformance
from discreet.audit.examine import Examination, Specification, Subject, examine
from discreet.audit.membership import Membership, membership
from discreet.audit.one_step import OneStep
from discreet.audit.replay import noise_depends_on_data, replay, replay_noisy
from discreet.audit.samplers import sampler_test

__all__ = [
    "AuditResult",
    "Examination",
    "GradientCanaries",
    "Membership",
    "ModelCanaries",
    "OneStep",
    "Specification",
    "Subject",
    "audit",
    "conformance",
    "examine",
    "membership",
    "noise_depends_on_data",
    "replay",
    "replay_noisy",
    "sampler_test",
]
