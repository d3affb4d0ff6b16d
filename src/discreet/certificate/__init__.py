"""The certificate: what was done, what it gave away at most, and all that is needed to compute it again.

>>> from discreet import Budget, Ledger, Recipe
>>> from discreet.ledger import FixedPlan
>>> budget = Budget(epsilon=1.0, delta=1e-6)
>>> plan = Recipe(records=60_000, batch_size=600, epochs=5).calibrate(budget)
>>> with Ledger.in_memory(FixedPlan(plan.event, budget)) as ledger:
...     lease = ledger.run(plan.event, plan.digest()).reserve(plan.steps)
...     certificate = Certificate.of(ledger, plan)
>>> print(Certificate.from_json(certificate.to_json()).verify())
consistent; nobody vouches for it
  claimed: procedure ...: 500 events charged, as its rule allows
  computed: guarantee from these events: (1, 1e-06)-differentially private for one record, add-remove neighbours, ...
  computed: second accountant (Renyi): at most 1.1...; no accountant can go below 0.99...
  claimed: noise from the operating system's entropy
  claimed: float sums: proved for real numbers
  claimed: not covered: 8 things, listed in the certificate, and no others
  claimed: made with discreet ...
  not at hand: the ledger, whose head should be 2, ...
  not at hand: which weights it is for: it holds no digest of any file

Pass the ledger, or a copy of its entries, to ``verify``, or the key of somebody who has signed the certificate
(:mod:`~discreet.certificate.signatures`). Without either it is consistent at best: anybody can make up numbers that
follow from each other. ``certificate.for_files(path, ...)`` binds it to the files of a model, and a signature that
follows covers them; so does the ledger, if it is passed there. A certificate holds declared numbers, events and
counts of steps: nothing in it depends on a record but, through the noise, the digests of such files.
"""

from discreet.certificate.certificate import Certificate
from discreet.certificate.guarantees import Arithmetic
from discreet.certificate.signatures import new_signing_key, public_key_of
from discreet.certificate.verification import Verification
from discreet.errors import CertificateRejected

__all__ = [
    "Arithmetic",
    "Certificate",
    "CertificateRejected",
    "Verification",
    "new_signing_key",
    "public_key_of",
]
