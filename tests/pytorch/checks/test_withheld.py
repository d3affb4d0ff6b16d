"""Messages of user code stay inside; labels stay in their support; the check leaves everything as it found it."""

import re
import traceback
import warnings

import pytest
import torch
from torch import distributions, nn
from torch.nn import functional

from discreet import Budget, Recipe
from discreet.core.clipping import Flat
from discreet.errors import CheckFailed, DiscreetError, UserCodeFailed
from discreet.pytorch import PrivateRun, check
from discreet.pytorch.checks.batch_dependence import make_up
from discreet.pytorch.checks.plain_state import PlainState
from discreet.pytorch.clipped_sum import ClippedSum

ROWS = 40
SECRET = 48151.0
X = torch.rand(ROWS, 5, generator=torch.Generator().manual_seed(1))


def class_losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


CLASSES = (X, torch.arange(ROWS) % 2)


def shown(error):
    """What a traceback with local variables prints below the frame of the test, and of errors before this one."""
    below = error.__traceback__.tb_next
    found = traceback.TracebackException(type(error), error, below, capture_locals=True)
    chain = [error, error.__cause__, error.__context__]
    return "".join(found.format()) + "".join(map(repr, chain))


def private_run(model, losses, dataset=CLASSES, **options):
    plan = Recipe(ROWS, 20, steps=3).calibrate(Budget(2.0, 1e-5))
    run = PrivateRun(plan, model, torch.optim.SGD(model.parameters(), 0.1), losses)
    return run, run.batches(dataset, **options)


def quoting(model, batch):
    raise KeyError(f"label {SECRET}")


def quoting_from_another(model, batch):
    try:
        quoting(model, batch)
    except KeyError as error:
        raise ValueError(f"cannot handle {error}") from error


def outside_of_support(model, batch):
    rates = model(batch[0])[:, 0].exp()
    return -distributions.Poisson(rates, validate_args=True).log_prob(batch[0][:, 0] * SECRET + 0.5)


@pytest.mark.parametrize("losses", [quoting, quoting_from_another, outside_of_support])
@pytest.mark.parametrize("where", ["check", "step"])
def test_no_exception_of_user_code_leaves_with_its_message(losses, where):
    def leave():
        if where == "check":
            check(nn.Linear(5, 2), losses, CLASSES)
        else:
            run, batches = private_run(nn.Linear(5, 2), losses)
            run.step(next(batches))

    with pytest.raises(UserCodeFailed) as refusal:
        leave()
    text = shown(refusal.value)
    assert "48151" not in text
    assert "tensor(" not in text
    assert type(refusal.value).__name__ == "UserCodeFailed"
    kind = "KeyError" if losses is quoting else "ValueError"
    place = rf"{kind} was raised by .* at .*test_withheld.py:\d+ in {losses.__name__}[.,]"
    assert re.search(place, str(refusal.value))


def test_public_rows_show_the_message():
    with pytest.raises(KeyError, match="48151"):
        check(nn.Linear(5, 2), quoting, CLASSES, public=True)


def test_the_size_of_a_batch_is_not_told():
    """torch tells the shape of a product that fails, and with it how many records were drawn."""
    broken = False

    def losses(model, batch):
        return class_losses(model, (torch.cat([batch[0], batch[0]], 1), batch[1]) if broken else batch)

    run, batches = private_run(nn.Linear(5, 2), losses)
    run.step(next(batches))
    run.step(next(batches))
    broken = True
    with pytest.raises(UserCodeFailed, match="RuntimeError was raised") as refusal:
        run.step(next(batches))
    assert not re.search(r"mat1|\d+x10", str(refusal.value))
    assert refusal.value.__context__ is None


def failing_collate(rows):
    raise RuntimeError(f"cannot stack {rows}")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_collate_quotes_no_record(workers):
    rows = [(torch.full((5,), SECRET), 0) for _ in range(ROWS)]
    run, batches = private_run(nn.Linear(5, 2), class_losses, rows, collate=failing_collate, workers=workers)
    with pytest.raises(DiscreetError) as refusal:
        run.step(next(batches))
    assert "48151" not in shown(refusal.value)
    assert "failing_collate" in str(refusal.value)


def test_warnings_of_user_code_stay_inside():
    def losses(model, batch):
        warnings.warn(f"odd label {SECRET}", stacklevel=1)
        return class_losses(model, batch)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run, batches = private_run(nn.Linear(5, 2), losses)
        run.step(next(batches))
    assert not seen


def poisson(model, batch):
    return -distributions.Poisson(model(batch[0])[:, 0].exp()).log_prob(batch[1])


def bernoulli(model, batch):
    return -distributions.Bernoulli(logits=model(batch[0])[:, 0]).log_prob(batch[1])


def one_hot(model, batch):
    return -distributions.OneHotCategorical(logits=model(batch[0])).log_prob(batch[1])


def dirichlet(model, batch):
    return -distributions.Dirichlet(model(batch[0]).exp()).log_prob(batch[1])


LABELS = {
    poisson: torch.arange(ROWS) % 7 * 1.0,
    bernoulli: torch.arange(ROWS) % 2 * 1.0,
    one_hot: torch.eye(3)[torch.arange(ROWS) % 3],
    dirichlet: torch.softmax(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2)), 1),
}


@pytest.mark.parametrize("losses", LABELS)
def test_losses_of_distributions_with_float_labels_are_trained(losses):
    run, batches = private_run(nn.Linear(5, 3), losses, (X, LABELS[losses]))
    for batch in batches:
        run.step(batch)
    assert run.steps_taken == 3


@pytest.mark.parametrize("losses", LABELS)
def test_made_up_labels_stay_in_the_support_and_mixing_is_still_found(losses):
    labels = LABELS[losses]
    rows = make_up((X, labels), 8, in_support=True)[1]
    assert torch.equal(rows, rows.round()) == torch.equal(labels, labels.round())
    if labels.ndim > 1:
        assert torch.allclose(rows.sum(1), torch.ones(8))

    def weighted(model, batch):
        weights = 1 + batch[1].reshape(len(batch[1]), -1)[:, 0]
        return losses(model, batch) * weights / weights.mean()

    with pytest.raises(CheckFailed, match="depends on the other examples"):
        check(nn.Linear(5, 3), weighted, (X, labels))


class Shifting(nn.Linear):
    def forward(self, x):
        x -= 1.0
        return super().forward(x)


class ShiftingByNumpy(nn.Linear):
    def forward(self, x):
        x.numpy()[...] -= 1.0
        return super().forward(x)


@pytest.mark.parametrize("kind", [Shifting, ShiftingByNumpy])
def test_writes_to_the_batch_are_refused_as_such(kind):
    with pytest.raises(CheckFailed, match="write to the batch in place"):
        check(kind(5, 2), class_losses, CLASSES)


def test_a_write_that_the_check_did_not_see_is_refused_in_the_step():
    """The broken twin passes the check, and writes where a real value occurs."""

    class Sometimes(nn.Linear):
        def forward(self, x):
            if len(x) > 9:
                x[x > 2] = 0.0
            return super().forward(x)

    with pytest.raises(CheckFailed, match="write to the batch in place"):
        ClippedSum(Sometimes(5, 2), class_losses, Flat(1.0))(CLASSES)


class RunningMean(nn.Linear):
    """A running mean in a plain attribute; ``used`` while training or not."""

    def __init__(self, used):
        super().__init__(5, 2)
        self.mean, self.used = torch.zeros(5), used

    def forward(self, x):
        self.mean = 0.99 * self.mean + 0.01 * x.detach().mean(0)
        return super().forward(x - 0.001 * self.mean if self.used else x)


class FirstBatch(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)
        self.scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = float(x.detach().abs().max())
        return super().forward(x / self.scale)


@pytest.mark.parametrize("make", [lambda: RunningMean(True), lambda: RunningMean(False), FirstBatch])
def test_state_that_remembers_earlier_batches_is_refused_and_left_as_found(make):
    model = make()
    name = "scale" if isinstance(model, FirstBatch) else "mean"
    before = getattr(model, name)
    with pytest.raises(CheckFailed, match=rf"earlier batches stays in the attribute '{name}' of the model"):
        check(model, class_losses, CLASSES)
    assert getattr(model, name) is before
    assert before is None or torch.equal(before, torch.zeros(5))


def test_state_in_a_closure_is_refused_and_left_as_found():
    kept = {"mean": 0.0}

    def losses(model, batch):
        kept["mean"] = 0.9 * kept["mean"] + 0.1 * float(batch[0].mean())
        return class_losses(model, batch)

    with pytest.raises(CheckFailed, match=r"'kept'.*'mean'"):
        check(nn.Linear(5, 2), losses, CLASSES)
    assert kept == {"mean": 0.0}


def test_counters_caches_and_the_latest_batch_pass_and_are_left_as_found():
    class Model(nn.Linear):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            self.latest = x.detach().clone()
            return super().forward(x)

    model, log = Model(5, 2), []

    def losses(model, batch):
        log.append(float(batch[0].mean()))
        return class_losses(model, batch)

    check(model, losses, CLASSES)
    assert not hasattr(model, "calls")
    assert not hasattr(model, "latest")
    assert log == []


def test_a_state_that_cannot_be_reached_shows_in_the_losses():
    """NaN poisons it for good: the broken twin hides its mean in a generator."""

    def running():
        mean = 0.0
        while True:
            mean = 0.99 * mean + 0.01 * (yield mean)

    hidden = running()
    next(hidden)

    def losses(model, batch):
        return class_losses(model, (batch[0] - 1e-4 * hidden.send(float(batch[0].mean())), batch[1]))

    with pytest.raises(CheckFailed, match="remember earlier batches"):
        check(nn.Linear(5, 2), losses, CLASSES)


def test_arrays_lists_and_objects_come_back():
    class Holder:
        pass

    layer = nn.Linear(1, 1)
    layer.holder, layer.table = Holder(), torch.zeros(3)
    layer.holder.seen = {1}
    state = PlainState(layer, lambda model, batch: None)
    layer.table += 1
    layer.holder.seen.add(2)
    layer.holder.more = 1
    state.restore()
    assert layer.table.tolist() == [0, 0, 0]
    assert vars(layer.holder) == {"seen": {1}}
