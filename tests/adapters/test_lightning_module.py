"""Lightning: the trainer fits as the plan says, and what it does besides is off or refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("lightning")

from lightning.pytorch import Trainer, callbacks
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import discreet as dp
from discreet.adapters.lightning_module import PrivateModule
from discreet.errors import CheckFailed, InvalidParameter, PlanViolation
from discreet.pytorch import PrivateRun

RECORDS = 60

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Module(PrivateModule):
    def __init__(self, interval="step"):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.interval = interval

    def losses(self, batch):
        return functional.cross_entropy(self.layers(batch[0]), batch[1], reduction="none")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        count = self.plan.steps if self.interval == "step" else 2
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, count)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}}


def records(seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(RECORDS, 4, generator=random)
    return x, (x[:, 0] > 0).long()


def plan(**options):
    recipe = dp.Recipe(RECORDS, batch_size=25, **({"epochs": 2} | options))  # 2.4 batches an epoch
    return recipe.calibrate(dp.Budget(epsilon=8.0, delta=1e-4))


def trainer(place, **options):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "accelerator": "cpu",
    }
    kept = {"enable_checkpointing": False} if "callbacks" not in options else {}
    return Trainer(**(quiet | kept | {"max_epochs": -1, "default_root_dir": str(place)} | options))


def weights(module):
    return torch.cat([value.detach().reshape(-1) for value in module.parameters()])


def test_it_does_what_a_run_does(tmp_path):
    module = Module().train_on(records(), plan(), unsafe_seed=5)
    fitting = trainer(tmp_path)
    fitting.fit(module)
    twin = Module()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, plan().steps)
    run = PrivateRun(plan(), twin, optimizer, lambda model, batch: model.losses(batch), unsafe_seed=5)
    for epoch in run.epochs(records()):
        ahead = next(epoch)
        while ahead is not None:  # within an epoch the trainer draws one batch ahead
            batch, ahead = ahead, next(epoch, None)
            run.step(batch)
            schedule.step()
    assert torch.equal(weights(module), weights(twin))
    assert fitting.global_step == module.run.steps_taken == plan().steps == 5
    assert fitting.current_epoch == 2
    assert module.certificate().guarantee.within(dp.Budget(epsilon=8.0, delta=1e-4))


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_schedules_go_by_their_interval(tmp_path, interval):
    fitting = trainer(tmp_path)
    fitting.fit(Module(interval).train_on(records(), plan()))
    assert fitting.lr_scheduler_configs[0].scheduler.get_last_lr()[0] == pytest.approx(0.05)


def test_the_trainer_never_sees_a_record(tmp_path):
    seen = []

    class Listener(callbacks.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            seen.append((outputs, vars(batch)))

    fitting = trainer(tmp_path, callbacks=[Listener()])
    fitting.fit(Module().train_on(records(), plan()))
    assert [held for _, held in seen] == [{"_step": step} for step in range(1, 6)]
    assert not any(outputs for outputs, _ in seen)
    assert fitting.callback_metrics == {}


REFUSED = {
    "accumulate_grad_batches": 2,
    "gradient_clip_val": 1.0,
    "overfit_batches": 1,
    "limit_train_batches": 2,
    "fast_dev_run": True,
    "max_steps": 3,
    "precision": "bf16-mixed",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_trainer_would_do_is_refused_by_name(tmp_path, name):
    module = Module().train_on(records(), plan())
    before = weights(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((InvalidParameter, MisconfigurationException), match=name):
            trainer(tmp_path, **{name: REFUSED[name]}).fit(module)
    assert torch.equal(before, weights(module))


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.StochasticWeightAveraging(0.01),
        callbacks.LearningRateFinder(),
        callbacks.BatchSizeFinder(),
        callbacks.GradientAccumulationScheduler({0: 1}),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_take_part_in_training_are_refused(tmp_path, callback):
    module = Module().train_on(records(), plan())
    module.batch_size, module.lr = 4, 0.1
    before = weights(module)
    with pytest.raises(InvalidParameter, match=f"callbacks='{type(callback).__name__}'"):
        trainer(tmp_path, callbacks=[callback]).fit(module)
    assert torch.equal(before, weights(module))


@pytest.mark.parametrize("name", ["training_step", "train_dataloader"])
def test_a_method_that_is_taken_is_refused(name):
    with pytest.raises(InvalidParameter, match=f"^{name}='Mine'"):
        type("Mine", (Module,), {name: lambda self, *args: None})


def test_a_loader_of_the_trainer_trains_nothing(tmp_path):
    module = Module().train_on(records(), plan())
    before = weights(module)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*records()), batch_size=20)
    with pytest.raises(PlanViolation, match="train_dataloaders"):
        trainer(tmp_path).fit(module, loader)
    assert torch.equal(before, weights(module))


def test_a_log_within_the_losses_is_refused(tmp_path):
    class Telling(Module):
        def losses(self, batch):
            found = super().losses(batch)
            self.log_dict({"loss": found.mean()})
            return found

    with pytest.raises(PlanViolation, match="within losses would release"):
        trainer(tmp_path).fit(Telling().train_on(records(), plan()))


def test_losses_over_the_batch_are_refused(tmp_path):
    class Mixing(Module):
        def losses(self, batch):
            found = super().losses(batch)
            return found - found.mean()

    with pytest.raises(CheckFailed):
        trainer(tmp_path).fit(Mixing().train_on(records(), plan()))


def test_it_trains_once_and_on_something(tmp_path):
    module = Module()
    with pytest.raises(InvalidParameter, match=r"^plan='str'"):
        module.train_on(records(), "of mine")
    with pytest.raises(PlanViolation, match="train_on"):
        trainer(tmp_path).fit(module)
    with pytest.raises(PlanViolation, match="no run"):
        module.certificate()
    trainer(tmp_path).fit(module.train_on(records(), plan()))
    with pytest.raises(PlanViolation, match="All steps of the plan are taken"):
        trainer(tmp_path).fit(module)
    with pytest.raises(PlanViolation, match="make a new one"):
        module.train_on(records(), plan())


class Stopping(callbacks.Callback):
    def on_train_batch_end(self, trainer, module, *args):
        if module.run.steps_taken == 3:
            trainer.should_stop = True


def test_it_goes_on_from_a_checkpoint(tmp_path):
    ledger = tmp_path / "study.ledger"
    first = Module().train_on(records(), plan(), ledger=ledger)
    stopped = trainer(tmp_path, callbacks=[Stopping()])
    stopped.fit(first)
    assert first.run.steps_taken == 3
    first.run.save(tmp_path / "kept", scheduler=stopped.lr_scheduler_configs[0].scheduler)
    second = Module().train_on(records(), plan(), ledger=ledger, resume=tmp_path / "kept")
    fitting = trainer(tmp_path)
    fitting.fit(second)
    assert second.run.steps_taken == 5
    assert fitting.lr_scheduler_configs[0].scheduler.get_last_lr()[0] == pytest.approx(0.05)


def test_their_checkpoint_is_no_way_to_begin_anew(tmp_path):
    fitting = trainer(tmp_path)
    fitting.fit(Module().train_on(records(), plan()))
    fitting.save_checkpoint(tmp_path / "theirs.ckpt")
    with pytest.raises(InvalidParameter, match=r"ckpt_path=.*without the ledger"):
        trainer(tmp_path).fit(Module().train_on(records(), plan()), ckpt_path=tmp_path / "theirs.ckpt")
