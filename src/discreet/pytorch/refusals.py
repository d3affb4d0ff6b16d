"""The sentences with which runs and their readers refuse, each with what to do instead. None holds a value."""

from __future__ import annotations

CLOSED_BATCH = (
    "A batch cannot be opened: its examples are private, and so is their number. Pass it to run.step(batch) "
    "as it is; what becomes of its examples is said in losses(model, batch)."
)
ALL_STEPS_TAKEN = (
    "All steps of the plan are taken: batches() runs through all epochs. For a loop over epochs write "
    "'for epoch in run.epochs(dataset): for batch in epoch:'. More steps need a plan and a budget of "
    "their own."
)
BATCH_NOT_USED = (
    "A batch was drawn and not used, and drawing again is a choice among batches, which no theorem "
    "covers. Pass every batch to step(), or go on from a checkpoint with a new run."
)
OTHER_DATA_SET = (
    "The run began with another data set, and its guarantee is for the records of one. Go on with that "
    "one, or make a run with a plan of its own."
)
FOREIGN_BATCH = (
    "The batch does not come from this run's latest batches(dataset), so nothing is known of how it "
    "was drawn. Pass what batches() yields, as it is; augment examples inside losses."
)
ODD_RECORDS = (
    "Records of one batch do not have the same names and types, so that one of them could decide how all are "
    "read. Make them alike in the data set: the same keys in each, and one type for each."
)
OTHER_NUMBER = (
    "collate makes more or fewer examples than there are records, so the clip norm would not bound what one "
    "record does. Make one example of each record."
)
COLLATED_NUMBERS = (
    "collate returns a number that depends on the other records of the batch, such as a count or a maximum, "
    "so one record could rescale the losses of all others. Return tensors with one entry for each record; "
    "what follows from their shapes can be computed in losses."
)
COLLATE_FAILS = (
    "collate fails for a batch of a few records, and sampled batches may hold one only. Let it work for any number "
    "of records."
)
WRITTEN = (
    "The model or the losses write to the batch in place, as x -= 1 or x[mask] = 0 do, so that a second pass over "
    "the same examples would see other numbers. Make a new tensor: x = x - 1, x = x.masked_fill(mask, 0), or begin "
    "with x = x.clone()."
)
