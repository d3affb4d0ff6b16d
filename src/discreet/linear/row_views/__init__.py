"""Views of encoded records: functions of one record that queries of models add up.

Nothing here is trusted. The gate cuts what a view returns, and compares it for secretly chosen records with what the
view returns for them alone (:func:`discreet.trusted.queries.evaluate`).
"""
