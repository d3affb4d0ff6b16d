"""The gate: the only way from private rows to a released value.

A :class:`~discreet.trusted.session.Session` charges a ledger and hands out a permit. A *query* says, as plain data,
what each record adds. :class:`~discreet.trusted.rows.PrivateRows` answer queries with integer sums in which every
record was clipped, and the session adds the noise of the event that was charged. Whatever asks the queries sees
released values only: it can waste a budget, not exceed it.

:data:`TRUSTED_FILES` lists the files that the guarantee of statistics, means, evaluations and models of tables rests
on. Models also rest on compiled kernels, :data:`KERNEL_FILES`. :mod:`discreet.linear.gate` has the queries of models,
by the same rules, for encoded records and compiled passes over them.
"""

from __future__ import annotations

TRUSTED_FILES: dict[str, tuple[str, ...]] = {
    "trusted": ("__init__", "choices", "outcomes", "plain_data", "queries", "rows", "session"),
    "core": (
        *("arrays", "choice", "clipping", "columns", "compiler", "draws", "grouping", "noise"),
        *("randomness", "silence"),
    ),
    "ledger": ("__init__", "book", "filters", "journal", "ledger", "postgres", "store", "till"),
    "plan": ("plan", "stage"),
    "certificate": ("__init__", "certificate", "promises", "signatures", "verification"),
    "events": ("__init__", "catalogue", "common"),
    "accounting": (
        *("allocation", "building", "certify", "chernoff", "curve", "direct", "divergences", "dominating"),
        *("gaussian", "largest", "lattice", "pairs", "rounded_sums", "sampled_pairs", "truncated"),
    ),
    "": ("errors", "files", "guarantee"),
    "linear": (
        *("cells", "encoder", "homes", "inputs", "lenient", "parquet", "partition_answers"),
        *("public_log", "residuals", "roll_call", "secret_sample", "sources", "spool", "tables"),
    ),
    "linear/gate": (
        *("__init__", "adding", "basis", "block_sums", "clipped_gradients", "column_pairs", "coordinates"),
        *(
            "curve_rows",
            "data",
            "declared_columns",
            "newton",
            "opaque",
            "partitioned_rows",
            "people",
            "private_table",
        ),
        *("raw", "record_store", "records", "score_cells", "second_moments", "shelf", "sparse_rows"),
    ),
    "linear/glm": ("spending",),
    "statistics": ("reading",),
    "evaluation": ("answers", "question", "splitting"),
}
"""Modules by package. Those of ``linear``, ``statistics`` and ``evaluation`` read tables; ``evaluation/answers.py``
asks models of users.
"""

KERNEL_FILES: dict[str, tuple[str, ...]] = {
    "linear/kernels": (
        *("__init__", "centred", "coefficients", "csr_entries", "csr_kernel", "dense_kernel", "kernel"),
        *("row_products", "row_tiles", "rowwise", "tiled_kernel", "vectors", "white_tiles", "whole_products"),
    ),
}
"""Compiled passes over the rows of tables, each compared with a plain reference in the tests."""
