"""The private Trainer of Hugging Face: it trains as the plan says, and what theirs does besides is off or refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
)

import discreet as dp
from discreet.adapters.hugging_face import PrivateTrainer, losses_of, refuse_arguments
from discreet.errors import InvalidParameter, PlanViolation
from discreet.pytorch import CheckFailed, PrivateRun

WORDS, RECORDS = 12, 60


def model():
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=8, num_labels=2, **size, **still)
    return BertForSequenceClassification(config)


def rows(count=RECORDS, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1, WORDS, (5,), generator=random).tolist(),
            "labels": int(torch.randint(2, (1,), generator=random)),
            "name": "who this is",  # no argument of the model
        }
        for _ in range(count)
    ]


def plan(**options):
    recipe = dp.Recipe(RECORDS, batch_size=20, **({"epochs": 2} | options))
    return recipe.calibrate(dp.Budget(epsilon=8.0, delta=1e-4))


def arguments(place, **options):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    return TrainingArguments(str(place), **(quiet | {"learning_rate": 0.01} | options))


def trainer(place, kind=PrivateTrainer, options=None, **more):
    return kind(
        model(), arguments(place, **(options or {})), **({"plan": plan(), "train_dataset": rows()} | more)
    )


def weights(trained):
    return torch.cat([value.detach().reshape(-1) for value in trained.parameters()])


def test_it_does_what_a_run_does(tmp_path):
    options = {"logging_steps": 1, "lr_scheduler_type": "cosine", "eval_strategy": "epoch"}
    private = trainer(tmp_path, options=options, unsafe_seed=5, eval_dataset=rows(seed=1))
    private.train()
    twin = model()
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan().steps)
    run = PrivateRun(plan(), twin, optimizer, losses_of(twin), unsafe_seed=5)
    columns = {name: torch.tensor([row[name] for row in rows()]) for name in ("input_ids", "labels")}
    for batch in run.batches(columns):
        run.step(batch)
        schedule.step()
    torch.testing.assert_close(weights(private.model), weights(twin), rtol=1e-4, atol=1e-5)
    assert private.run.steps_taken == private.state.global_step == 6
    assert private.state.epoch == pytest.approx(2.0)


def test_logs_and_results_hold_nothing_of_the_records(tmp_path):
    seen = []

    class Listener(TrainerCallback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda *args, **kwargs: seen.append((name, args, kwargs))
            return super().__getattribute__(name)

    private = trainer(tmp_path, options={"logging_steps": 1}, callbacks=[Listener()])
    result = private.train()
    assert result.training_loss != result.training_loss
    assert not result.metrics
    assert all(set(line) == {"learning_rate", "epoch", "step"} for line in private.state.log_history)
    assert len(private.state.log_history) == 6
    assert all(kwargs.get("train_dataloader") is None for _, _, kwargs in seen)
    assert len([name for name, _, _ in seen if name == "on_step_end"]) == 6
    assert private.state.total_flos == private.state.num_input_tokens_seen == 0
    assert private.certificate().guarantee.within(dp.Budget(epsilon=8.0, delta=1e-4))


REFUSED = {
    "num_train_epochs": 5.0,
    "max_steps": 7,
    "gradient_accumulation_steps": 4,
    "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1,
    "push_to_hub": True,
    "save_only_model": True,
    "gradient_checkpointing": True,
    "neftune_noise_alpha": 5.0,
    "auto_find_batch_size": True,
    "include_num_input_tokens_seen": "all",
    "train_sampling_strategy": "group_by_length",
    "dataloader_drop_last": True,
    "data_seed": 3,
    "save_total_limit": 2,
    "average_tokens_across_devices": False,
    "accelerator_config": {"split_batches": True},
    "resume_from_checkpoint": "here",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_their_loop_would_do_is_refused_by_name(tmp_path, name):
    with pytest.raises(InvalidParameter, match=rf"^{name}="):
        trainer(tmp_path, options={name: REFUSED[name]})


def test_the_clipping_of_means_is_off_and_says_so(tmp_path):
    """1.0 is their default, so it cannot be told from a wish; what the trainer's arguments say is true."""
    for given in (1.0, 0.0, None):
        assert trainer(tmp_path, options={"max_grad_norm": given}).args.max_grad_norm == 0


def test_bfloat16_is_for_the_losses(tmp_path):
    private = trainer(tmp_path, options={"bf16": True})
    kinds = []
    private.model.classifier.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    private.train()
    assert set(kinds) == {torch.bfloat16}
    assert weights(private.model).dtype == torch.float32
    assert private.certificate().verify()


def test_training_stops_early_by_public_records(tmp_path):
    """A learning rate of 0 never gets better, so the second evaluation is the last."""
    wish = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "learning_rate": 0.0}
    private = trainer(
        tmp_path,
        options=wish | {"greater_is_better": False},
        eval_dataset=rows(10, seed=1),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=1)],
    )
    private.train()
    assert private.run.steps_taken == 2
    assert private.state.best_metric is not None


def test_refusals_say_nothing_that_is_untrue(tmp_path):
    for name in ("push_to_hub", "fp16", "dataloader_drop_last"):
        with pytest.raises(InvalidParameter) as refusal:
            refuse_arguments(_with(arguments(tmp_path), name))
        assert "no effect" not in str(refusal.value)


def _with(args, name):
    setattr(args, name, True)
    return args


@pytest.mark.parametrize(
    "name", ["training_step", "compute_loss", "get_train_dataloader", "get_batch_samples"]
)
def test_a_method_that_would_not_be_called_is_refused(tmp_path, name):
    kind = type("Mine", (PrivateTrainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(InvalidParameter, match=f"^{name}='Mine': is overridden"):
        trainer(tmp_path, kind)


@pytest.mark.parametrize("name", ["compute_loss_func", "model_init"])
def test_losses_and_models_that_are_made_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(InvalidParameter, match=f"^{name}="):
        trainer(tmp_path, **{name: lambda *args: None})


def test_the_records_of_the_training_are_not_measured(tmp_path):
    records = rows()
    for same in (records, {"all": records}, torch.utils.data.Subset(records, [1, 2])):
        with pytest.raises(InvalidParameter, match="holds the records of the training"):
            trainer(tmp_path, train_dataset=records, eval_dataset=same)
    private = trainer(tmp_path, train_dataset=records)
    with pytest.raises(InvalidParameter, match="holds the records of the training"):
        private.evaluate(records)
    with pytest.raises(InvalidParameter, match="holds the records of the training"):
        private.predict(torch.utils.data.Subset(records, [1, 2]))
    with pytest.raises(PlanViolation, match="no loader of the training records"):
        private.get_train_dataloader()
    with pytest.raises(PlanViolation, match="costs privacy"):
        private.hyperparameter_search()
    with pytest.raises(InvalidParameter, match=r"^train_dataset=None"):
        trainer(tmp_path, train_dataset=None)


def test_a_schedule_that_follows_measurements_is_refused(tmp_path):
    trained = model()
    adam = torch.optim.Adam(trained.parameters())
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(adam)
    private = PrivateTrainer(
        trained, arguments(tmp_path), plan=plan(), train_dataset=rows(), optimizers=(adam, schedule)
    )
    with pytest.raises(InvalidParameter, match=r"ReduceLROnPlateau.*follows a measurement"):
        private.train()


def test_a_loss_over_the_batch_is_refused(tmp_path):
    with pytest.raises(CheckFailed):
        trainer(tmp_path, losses=lambda m, batch: m(**batch).loss).train()


def test_it_trains_once(tmp_path):
    private = trainer(tmp_path)
    with pytest.raises(PlanViolation, match="no run; call train"):
        private.certificate()
    private.train()
    before = weights(private.model)
    with pytest.raises(PlanViolation, match="All steps of the plan are taken"):
        private.train()
    assert torch.equal(before, weights(private.model))


class Stop(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_it_goes_on_from_a_checkpoint(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "linear"}
    first = trainer(tmp_path, options=options, ledger=tmp_path / "study.ledger", callbacks=[Stop()])
    first.train()
    assert first.run.steps_taken == 2
    kept = json.loads((tmp_path / "checkpoint-2" / "run.json").read_text())
    assert kept["step"] == 2
    second = trainer(tmp_path, options=options, ledger=tmp_path / "study.ledger")
    second.train(resume_from_checkpoint=True)
    assert second.run.steps_taken == second.state.global_step == 6
    assert second.lr_scheduler.get_last_lr()[0] == pytest.approx(0.0)
    with pytest.raises(PlanViolation, match="has begun in this ledger"):
        trainer(tmp_path, ledger=tmp_path / "study.ledger").train()


def test_a_stranger_to_the_arguments_is_told(tmp_path):
    with pytest.raises(InvalidParameter, match=r"^args="):
        PrivateTrainer(model(), {"output_dir": "x"}, plan=plan(), train_dataset=rows())
    with pytest.raises(InvalidParameter, match=r"^plan='str'"):
        trainer(tmp_path, plan="of mine")
    with pytest.raises(InvalidParameter, match="is a stream, and the plan draws the batches"):
        trainer(tmp_path, train_dataset=iter(rows()))
    with pytest.raises(InvalidParameter, match="found none in output_dir"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


SCRIPT = """
import sys
from pathlib import Path
import torch
from test_hugging_face import plan, trainer, weights
place = Path(sys.argv[1])
private = trainer(place, ledger=place / "study.ledger")
private.train()
torch.save(weights(private.model), place / f"weights-{private.args.process_index}")
assert private.args.world_size == 2 and private.run.steps_taken == plan().steps
assert private.certificate().verify()
"""


@pytest.mark.slow
@pytest.mark.network
def test_two_processes_of_torchrun_train_one_model(tmp_path):
    """What each of them adds is noisy already; both end with the same weights and one ledger."""
    (tmp_path / "train.py").write_text(SCRIPT)
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(tmp_path / "train.py"), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (torch.load(tmp_path / f"weights-{rank}") for rank in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, weights(model()))
