"""The trusted part of ``linear``: encoded records, the queries that they answer, and what enforces sensitivity.

A strategy (``linear/glm``, ``linear/additive``) holds :class:`~discreet.linear.gate.records.Records`, which have no
rows to look at, and asks queries of them: frozen data from a closed list
(:data:`~discreet.linear.gate.records.CATALOGUE`). Only :meth:`Stage.ask <discreet.trusted.spending.StagePermit.ask>`
reads the sum of a query, after it was paid for, and it returns the sum with noise. What a record adds is bounded
here, for the data at hand, so a strategy that is wrong can waste a budget and never exceed it.
"""
