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
NOT_ALONE = (
    "The losses cannot be computed for one example of this batch alone, so it cannot be seen whether examples mix. "
    "Let the model and the losses work for a batch of one example; a squeeze() without a dimension is the "
    "usual reason."
)
ROUNDING_GROWS = (
    "Rounding errors of float32 grow so much in this model that the gradient of an example changes with "
    "the examples around it, by more than a hundredth. The run ends here; nothing of this step was paid "
    "for or released. Train in float64 (model.double() and the data), with arithmetic='hardened', or "
    "with smaller weights or fewer layers."
)
MEETS_OTHERS = (
    "The loss of a record depends on the records with which collate puts it into a batch, for instance because the "
    "batch is padded to its longest record, by a number that collate returns, or because the losses or the model mix "
    "examples. The run ends here; nothing of this step was paid for or released. Let collate, the model and the "
    "losses treat each record by itself, and mask in losses what was added."
)
MIXES = (
    "An example of this batch has another loss, or another norm of its gradient, than the same example "
    "alone: the losses or the model mix examples. The run ends here; nothing of this step was paid for or "
    "released. Return each example's own loss, from its own values only."
)
NOT_THE_SUM = (
    "The sum of this batch is not the sum of what its examples add alone and in other batches: the losses, the model "
    "or collate mix examples, or rounding errors of float32 grow too much in this model. The run ends here; nothing "
    "of this step was paid for or released. Return each example's own loss, from its own values only; against "
    "rounding train in float64 or with arithmetic='hardened'."
)
TOO_LONG = (
    "The sum of this batch is longer than its number of examples times the clip norm, so some gradient was not "
    "clipped. The run ends here; nothing of this step was paid for or released. Please report the model: this is a "
    "fault of the library or of a backward pass of its own."
)
REFUSED_BEFORE = (
    "was refused by a comparison, which the ledger has stored, and cannot be resumed: another try would compare "
    "other examples. Mend the losses, the model or collate, and plan another run: Recipe(..., name=...)."
)
"""After the name of a run."""
IN_A_WINDOW = (
    "Step {step} is within {window} steps whose batches are drawn together, so batches() cannot begin after it. Keep "
    "the iterator that batches() returned, and go on with it; a run that resumes from a checkpoint begins after them."
)
RUN_HAS_BEGUN = (
    "has begun in this ledger. Call resume(directory) with its checkpoint, or plan another run: "
    "Recipe(..., name=...). A run that ended before its first save() has no checkpoint, and its unspent "
    "steps cannot be used: call save(directory) before the first step."
)
"""After the name of a run."""
LEDGER_IN_MEMORY = (
    "The ledger of this run is in memory and ends with this process, so a checkpoint could never be resumed. Give "
    "PrivateRun a ledger= on disk. To keep the weights alone, write model.state_dict()."
)
OPTIMIZER_FAILED = (
    "The step is paid for, and parameter.grad holds its private gradient. To see the message, call optimizer.step() "
    "once more; then call run.edited() and go on with the next batch."
)
PLAN_FOR_RECORDS = (
    "The data set is one of people, and the plan protects records. Plan for people: records= their number, "
    "and Budget(epsilon, delta, unit='person')."
)
PLAN_FOR_PEOPLE = (
    "The plan protects people, and the data set does not say whose a row is: "
    "run.batches(PerPerson(dataset, ids, rows=8))."
)
ANOTHER_PROCESS = "Another process refused the step, so nothing is released; it says why."
