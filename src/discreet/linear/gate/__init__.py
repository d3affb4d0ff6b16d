"""The gate of models: encoded records answer queries, and nothing else.

:class:`~discreet.linear.gate.records.Records` answer the blocks of :mod:`discreet.trusted.queries` and the sums of
:mod:`discreet.linear.gate.compiled_sums`. Whatever a query holds, a record moves its sum by at most its bound.
"""
