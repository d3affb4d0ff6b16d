"""Privacy report for readers without a programming background: guarantee, evidence, verification.

>>> from discreet import Budget, Certificate, Ledger, Recipe
>>> from discreet.ledger import FixedPlan
>>> plan = Recipe(records=60_000, batch_size=600, epochs=10, clip_norm=1.0).calibrate(Budget(2.0, 1e-6))
>>> with Ledger.in_memory(FixedPlan(plan.event, Budget(2.0, 1e-6))) as ledger:
...     lease = ledger.run(plan.event, plan.digest()).reserve(plan.steps)
...     page = Report(Certificate.of(ledger, plan), title="Readmissions 2026")
>>> print(page.facts.attack.partition(";")[0])
At a false positive rate of 1%, the best attack identifies at most 2.79% of the records that were used
>>> page.save("report.html")  # doctest: +SKIP

A report holds what the certificate holds, nothing else about the data, so it may be published with it. It is written
as one HTML file that needs no network and carries its certificate (``discreet verify report.html``), as Markdown,
and as JSON. ``page.signed(key)`` signs the HTML file as a whole: a signature on the certificate does not cover the
title, the owner's words, an evaluation or the model. What it says, section by section, is listed in
:mod:`discreet.report.chapters`.
"""

from discreet.report.cover import Cover
from discreet.report.report import Report

__all__ = ["Cover", "Report"]
