"""The gate: the only way from private rows to a released value.

A :class:`~discreet.trusted.session.Session` charges a ledger and hands out a permit. A *query* says, as plain data,
what each record adds. :class:`~discreet.trusted.rows.PrivateRows` answer queries with integer sums in which every
record was clipped, and the session adds the noise of the event that was charged. Whatever asks the queries sees
released values only: it can waste a budget, not exceed it.

:data:`TRUSTED_FILES` lists the files that the guarantee of statistics, means, evaluations and models of tables rests
on, and that of PyTorch and of parties. Models also rest on compiled kernels, :data:`KERNEL_FILES`, and PyTorch on
:data:`FAST_PYTORCH_FILES`. Functions of one record, :data:`VIEW_FILES`, are compared at run time.
:mod:`discreet.linear.gate` has the queries that compiled passes over encoded records answer, and
:mod:`discreet.trusted.permits` ties the noise of a step to its charge.
"""

from __future__ import annotations

TRUSTED_FILES: dict[str, tuple[str, ...]] = {
    "trusted": (
        *("__init__", "choices", "noisy_statistic", "opaque", "permits", "plain_data", "queries", "rows"),
        *("session", "spending"),
    ),
    "core": (
        *("arrays", "matrix_mechanism", "choice", "clipping", "columns", "compiler", "float_samplers"),
        *("grouping", "noise", "noise_shares", "randomness", "sampling", "fp_errors"),
    ),
    "ledger": ("__init__", "ledger_state", "filters", "ledger_log", "ledger", "postgres", "store", "till"),
    "plan": ("procedure", "stage"),
    "certificate": ("__init__", "certificate", "guarantees", "signatures", "verification"),
    "events": ("__init__", "catalogue", "common"),
    "accounting": (
        *("allocation", "discretisation", "certified_bounds", "chernoff", "curve", "convolve_direct"),
        *("divergences", "dominating", "gaussian", "max_loss", "lattice", "pairs", "rounded_sums"),
        *("sampled_pairs", "truncated"),
    ),
    "": ("errors", "files", "guarantee"),
    "linear": (
        *("checked_questions", "csv_records", "fit_budget", "on_demand", "partition_answers"),
        *("partition_results", "party_table", "private_reader", "public_log", "residuals", "row_source"),
        *("rows_alone", "subsampling", "user_routing", "views"),
    ),
    "linear/gate": (
        *("__init__", "checks", "column_blocks", "compiled_sums", "declared_columns", "partitioned_rows"),
        *("people", "private_table", "records", "block_cache"),
    ),
    "pytorch": (
        *("batches", "chosen_weights", "distributed", "integer_gradients", "per_example"),
        *("per_person", "private_steps", "torch_holder", "training_stages"),
    ),
    "pytorch/checks": ("generators", "spot_check", "withheld"),
    "parties": ("answer_log", "answering", "noise_scale", "party_plan", "questions", "sgd1", "sgd2"),
    "parties/secure": ("masks", "secure_group", "secure_messages", "secure_sum", "shares"),
    "statistics": ("reading",),
    "evaluation": ("answers", "question", "splitting"),
}
"""Modules by package. Those of ``linear``, ``statistics`` and ``evaluation`` read tables; ``evaluation/answers.py``
asks models of users. Those of ``pytorch`` draw batches, compute the gradient of one example alone, clip, add up,
charge, add noise, and compare the fast computation with the slow one; those of ``parties`` answer the coordinator.
"""

FAST_PYTORCH_FILES: dict[str, tuple[str, ...]] = {
    "pytorch": (
        *("clipped_sum", "gradients", "graph_rules", "linear_fast_path", "mapped_gradients", "batch_axis"),
        *("recording", "sharded"),
    ),
    "pytorch/kernels": (
        *("__init__", "convolution_grams", "convolution_weights", "linear_layers", "lstm", "normalised"),
        *("norms", "panels", "tiles"),
    ),
    "pytorch/layer_rules": (
        *("__init__", "convolution", "elementwise", "embedding", "linear", "recurrent", "use"),
    ),
}
"""Clipped sums of whole batches without the gradient of each example, compared with it at run time."""

READING_FILES: dict[str, tuple[str, ...]] = {
    "linear": (
        *("cells", "encoder", "inputs", "loss_functions", "out_of_core", "parquet", "read_parts", "tables"),
    ),
}
"""Parsing, conversion and encoding of cells, compared at run time with what a row is read as alone
(:mod:`discreet.linear.rows_alone`)."""

KERNEL_FILES: dict[str, tuple[str, ...]] = {
    "linear/kernels": (
        *("__init__", "centred", "coefficients", "csr_entries", "csr_kernel", "csr_rows", "dense_kernel"),
        *("hat_entries", "kernel", "moment_lattice", "rank_crossings", "row_products", "row_tiles"),
        *("rowwise", "score_cells", "tiled_kernel", "uneven_bins", "vectors", "white_tiles"),
        "whole_products",
    ),
}
"""Compiled passes over the rows of tables, each compared with a plain reference in the tests."""

VIEW_FILES: dict[str, tuple[str, ...]] = {
    "statistics": ("statistic_views",),
    "evaluation": ("outcomes",),
    "linear/row_views": ("__init__", "column_views", "coordinates", "curve_bases", "targets"),
}
"""Functions of one record, whose results are cut in :mod:`discreet.trusted.queries` whatever they are, and compared
for secretly chosen records with those for the records alone."""
