"""The ``Trainer`` of Hugging Face, private: :class:`PrivateTrainer`.

    trainer = PrivateTrainer(model, TrainingArguments("out", learning_rate=1e-3), plan=plan, train_dataset=rows)
    trainer.train()
    trainer.certificate().save("certificate.json")

Optimizer, schedule, callbacks, logs, evaluation and checkpoints are theirs. The loop is the one of
:class:`~discreet.pytorch.run.PrivateRun`, so nothing of what their loop does with records can happen: no sampler, no
accumulation, no scaling of losses, no mean over tokens, no clipping of the mean gradient, no count of tokens, and no
training loss in a log. An argument that would ask for any of it is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from discreet.certificate import Certificate
from discreet.errors import InvalidParameter, PlanViolation, missing_extra
from discreet.ledger.till import AnyLedger, KeyFile
from discreet.plan.plan import Plan
from discreet.pytorch.loaders import refuse_unreadable
from discreet.pytorch.per_example import Losses
from discreet.pytorch.run import Clipping, PrivateRun
from discreet.pytorch.training_stages import checked_plan

try:
    import accelerate as _accelerate
    from transformers import Trainer, TrainerState, TrainingArguments
    from transformers.trainer_utils import SaveStrategy, TrainOutput, get_last_checkpoint
except ImportError as error:
    raise missing_extra(f"discreet.adapters.hugging_face needs {error.name}", "huggingface") from None

del _accelerate  # the Trainer does not work without it

HONOURED = {
    "output_dir", "per_device_train_batch_size", "learning_rate", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "use_cache", "logging_strategy", "logging_steps", "logging_first_step",
    "log_on_each_node", "log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name",
    "project", "eval_strategy", "eval_steps", "eval_delay", "per_device_eval_batch_size",
    "prediction_loss_only", "eval_do_concat_batches", "eval_accumulation_steps", "include_for_metrics",
    "batch_eval_metrics", "save_strategy", "save_steps", "seed", "use_cpu", "dataloader_num_workers",
    "remove_unused_columns", "label_names", "do_train", "do_eval", "do_predict", "logging_dir",
    "bf16", "metric_for_best_model", "greater_is_better", "hub_model_id", "hub_token", "hub_private_repo",
    "hub_revision",
}  # fmt: skip
"""Arguments that mean here what they mean there; any other is refused unless it has its default value."""

REMEDIES = {
    "num_train_epochs": "is the plan's business: Recipe(epochs=...).",
    "max_steps": "is the plan's business: Recipe(steps=...).",
    "gradient_accumulation_steps": "is not needed: Recipe(batch_size=...) is the batch of a step, and "
    "per_device_train_batch_size limits how much of it is in memory.",
    "max_grad_norm": "would clip the mean of a batch, which protects nobody; the plan's clip_norm is for each "
    "example. Set it to 0, or leave it out.",
    "fp16": "needs losses that are scaled, and so gradients whose norms are not those of the losses; use bf16.",
    "bf16_full_eval": "would round the weights that are trained; use bf16.",
    "fp16_full_eval": "would round the weights that are trained; use bf16.",
    "tf32": "would round the norms of examples.",
    "torch_compile": "would hide the layers of the model from per-example gradients.",
    "full_determinism": "cannot be had: noise and batches that follow from a seed protect nobody.",
    "push_to_hub": "would upload the folder while training goes on. Call trainer.push_to_hub() after train().",
    "hub_strategy": "goes with push_to_hub. Call trainer.push_to_hub() after train().",
    "hub_always_push": "goes with push_to_hub. Call trainer.push_to_hub() after train().",
    "eval_on_start": "is not done here. Call trainer.evaluate() before train().",
    "save_total_limit": "is not kept here: all checkpoints stay. Delete old ones yourself.",
    "save_only_model": "is not done here: without the state of the run a checkpoint cannot be resumed.",
    "label_smoothing_factor": "belongs into losses=.",
    "neftune_noise_alpha": "belongs into losses=.",
    "gradient_checkpointing": "is asked for by model.gradient_checkpointing_enable({'use_reentrant': False}).",
    "auto_find_batch_size": "would begin anew after a failure that depends on the records.",
    "include_num_input_tokens_seen": "would log how much text the records hold.",
    "load_best_model_at_end": "compares checkpoints; save them and choose by public records.",
    "resume_from_checkpoint": "is an argument of train().",
}

UNUSED = (
    "training_step",
    "compute_loss",
    "get_train_dataloader",
    "get_batch_samples",
    "_inner_training_loop",
)
"""What a subclass would override in vain: private training does not call it."""


class PrivateTrainer(Trainer):
    """A ``transformers.Trainer`` that trains as ``plan`` says and no other way.

    ``losses(model, batch)`` returns one loss per example; without it they are those of the model's head
    (:func:`~discreet.adapters.hugging_face.losses_of`). ``clipping``, ``ledger``, ``ledger_key``, ``data`` and
    ``unsafe_seed`` are those of :class:`~discreet.pytorch.run.PrivateRun`; ``options`` are those of ``Trainer``.
    ``per_device_train_batch_size`` is how many examples are in memory at a time. ``bf16`` computes the losses under
    autocast. ``max_grad_norm``, whose default there is 1, is not applied: ``trainer.args`` holds 0 in its place, and
    the plan's ``clip_norm`` bounds each example's gradient.

    Guarantee: training costs what ``plan.guarantee`` says at most. It is not for ``evaluate`` and ``predict``: what
    they tell of their records is not paid for. They refuse the records of the training.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        plan: Plan,
        losses: Losses | None = None,
        clipping: Clipping | Mapping[str, Clipping] | None = None,
        ledger: AnyLedger = None,
        ledger_key: KeyFile = None,
        data: str | None = None,
        unsafe_seed: int | None = None,
        **options: Any,
    ) -> None:
        refuse_arguments(args)
        for name in ("model_init", "compute_loss_func"):
            if options.get(name) is not None:
                remedy = (
                    "has no place here: give the model and losses=, a function that returns one per example."
                )
                raise InvalidParameter(name, "set", remedy)
        for name in UNUSED:
            if getattr(type(self), name) is not getattr(PrivateTrainer, name):
                remedy = (
                    "is overridden, and private training does not call it; give losses= and train_dataset=."
                )
                raise InvalidParameter(name, type(self).__name__, remedy)
        if options.get("train_dataset") is None:
            raise InvalidParameter("train_dataset", None, "is needed: the records that the plan draws from.")
        refuse_unreadable(options["train_dataset"])
        self.plan, self._losses = checked_plan(plan), losses if losses is not None else losses_of(model)
        self._private: dict[str, Any] = {
            "clipping": clipping,
            "ledger": ledger,
            "ledger_key": ledger_key,
            "data": data,
            "unsafe_seed": unsafe_seed,
        }
        self._begun: PrivateRun | None = None
        args = copy(args)
        args.max_grad_norm = 0.0
        super().__init__(model, args, **options)
        if args.bf16:
            self._losses = in_bfloat16(self._losses, args.device.type)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # by what started the process
            remedy = "shards the model, which private training does not; start it with torchrun."
            raise InvalidParameter("accelerate", "FSDP or DeepSpeed", remedy)
        each = self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]
        for dataset in each:
            self._refuse_training_records("eval_dataset", dataset)

    @property
    def run(self) -> PrivateRun:
        """The run of the plan, from the first call of ``train`` on."""
        if self._begun is None:
            raise PlanViolation("Nothing was trained yet, so there is no run; call train() first.")
        return self._begun

    def certificate(self) -> Certificate:
        """Certificate of the releases of training so far."""
        return self.run.certificate()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """All steps of the plan that are left, or those until a callback stops them.

        ``resume_from_checkpoint`` goes on from a checkpoint of this trainer, with the ledger of the run. The training
        loss of the result is not a number: it is private.
        """
        if trial is not None:
            raise PlanViolation("Each trial of a search costs privacy: see discreet.selection.")
        if self._begun is None:
            self._begin(resume_from_checkpoint)
        self.is_in_train = True
        self._tell("on_train_begin")
        for epoch in self.run.epochs(self.train_dataset, collate=self._collate(), workers=self._workers()):
            self._tell("on_epoch_begin")
            for batch in epoch:
                self._step(batch, ignore_keys_for_eval)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            self._tell("on_epoch_end")
            self._after(ignore_keys_for_eval)
            if self.control.should_training_stop:
                break
        self._tell("on_train_end")
        self.is_in_train = False
        return TrainOutput(self.state.global_step, math.nan, {})

    def _begin(self, checkpoint: str | bool | None) -> None:
        """The optimizer, the schedule over the plan's steps, and the run, maybe from a checkpoint."""
        self.create_optimizer_and_scheduler(self.plan.steps)
        if "metrics" in signature(self.lr_scheduler.step).parameters:
            remedy = "follows a measurement; choose one that follows the steps, such as 'cosine'."
            raise InvalidParameter("lr_scheduler_type", type(self.lr_scheduler).__name__, remedy)
        run = PrivateRun(
            self.plan,
            self.model,
            self.optimizer,
            self._losses,
            physical_batch_size=self.args.per_device_train_batch_size,
            **self._private,
        )
        if checkpoint:
            place = get_last_checkpoint(self.args.output_dir) if checkpoint is True else checkpoint
            if place is None:
                raise InvalidParameter("resume_from_checkpoint", True, "found none in output_dir.")
            run.resume(place, scheduler=self.lr_scheduler)
        self._begun = run
        self.state = TrainerState(global_step=run.steps_taken, epoch=0.0)
        self.state.compute_steps(self.args, self.plan.steps)
        self.state.init_training_references(self, self.plan.steps, math.ceil(self._epochs()), None)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _step(self, batch: Any, ignore_keys: list[str] | None) -> None:
        self.model.train()  # an evaluation may lie between
        self._tell("on_step_begin")
        self.run.step(batch)
        self.lr_scheduler.step()
        self.state.global_step = batch.step
        self.state.epoch = batch.step / self.plan.steps * self._epochs()
        self._tell("on_step_end")
        self._after(ignore_keys)

    def _after(self, ignore_keys: list[str] | None) -> None:
        """Log, evaluate and save where the callbacks have asked for it; a log holds planned values only."""
        if self.control.should_log:
            self.log({"learning_rate": self._get_learning_rate()})
        if self.control.should_evaluate:
            best = self._determine_best_metric(self.evaluate(ignore_keys=ignore_keys), None)
            if self.args.save_strategy == SaveStrategy.BEST:
                self.control.should_save = best
        if self.control.should_save:
            place = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            self.save_model(str(place), _internal_call=True)
            if self._private["ledger"] is not None:  # otherwise there is nothing to resume with
                self.run.save(place, scheduler=self.lr_scheduler)
            self._tell("on_save")

    def _tell(self, event: str) -> None:
        """Tell the callbacks, which answer by what they ask for."""
        self.control: Any = getattr(self.callback_handler, event)(self.args, self.state, self.control)

    def _epochs(self) -> float:
        return sum(stage.epochs for stage in self.plan.stages)

    def _collate(self) -> Any:
        """Their collate function, behind their choice of the columns that the model takes."""
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    def _workers(self) -> int:
        return int(self.args.dataloader_num_workers)

    def get_train_dataloader(self) -> Any:
        """Refused: it would shuffle, and what is read from it is not paid for."""
        raise PlanViolation("The plan draws the batches, and there is no loader of the training records.")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Theirs, unless it would read the records of the training."""
        self._refuse_training_records("eval_dataset", eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Theirs, unless it would read the records of the training."""
        self._refuse_training_records("test_dataset", test_dataset)
        return super().get_test_dataloader(test_dataset)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: each trial would cost what the plan costs."""
        raise PlanViolation("Each trial of a search costs privacy: see discreet.selection.")

    def _refuse_training_records(self, name: str, dataset: Any) -> None:
        seen = dataset
        while seen is not None:
            if seen is self.train_dataset:
                remedy = (
                    "holds the records of the training, and what is measured on them would be released without being "
                    "paid for. Take public records, or discreet.evaluate on others."
                )
                raise InvalidParameter(name, type(dataset).__name__, remedy)
            seen = getattr(seen, "dataset", None)  # a Subset


def in_bfloat16(losses: Losses, device: str) -> Losses:
    """Losses that are computed under autocast; norms and sums are taken outside of it."""

    def rounded(model: Any, batch: Any) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return losses(model, batch).float()

    return rounded


def refuse_arguments(args: TrainingArguments) -> None:
    """Refuse arguments that ask for something that private training does not do."""
    if not isinstance(args, TrainingArguments):
        raise InvalidParameter("args", type(args).__name__, "must be transformers.TrainingArguments.")
    default = type(args)(output_dir=args.output_dir, use_cpu=args.use_cpu)
    for field in fields(args):
        value = getattr(args, field.name)
        if field.name not in HONOURED and value != getattr(default, field.name):
            if field.name == "max_grad_norm" and not value:
                continue
            remedy = REMEDIES.get(field.name, "is not used by the loop of PrivateTrainer; leave it out.")
            raise InvalidParameter(field.name, value, remedy)


IGNORED = -100
"""The label of tokens that do not count, everywhere in that library."""
_OF_EXAMPLES = {f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio")}
_OF_TOKENS = {"ForMaskedLM", "ForTokenClassification"}
_OF_NEXT_TOKENS = {"ForCausalLM", "ForConditionalGeneration"}


def losses_of(model: nn.Module) -> Losses:
    """The losses of a model's own head, one per example, from batches with ``labels``.

    Classes of sequences, images or sounds, numbers, several labels at once, classes of tokens, masked words and
    the next word, with or without an encoder. For other heads write losses of your own.
    """
    beneath = getattr(model, "get_base_model", None)  # of a model with adapters of peft
    base: Any = beneath() if callable(beneath) else model
    kind = getattr(base, "loss_type", None)
    if kind is None and type(base).__name__.endswith("LMHeadModel"):
        kind = "ForCausalLM"
    if kind in _OF_EXAMPLES:
        return _of_examples
    if kind in _OF_TOKENS or (kind in _OF_NEXT_TOKENS and base.config.is_encoder_decoder):
        return _of_tokens
    if kind in _OF_NEXT_TOKENS:
        return _of_next_tokens
    raise InvalidParameter(
        "losses",
        None,
        f"are needed for a {type(base).__name__}: a function of model and batch that returns one loss per example.",
    )


def _of_examples(model: Any, batch: Any) -> Tensor:
    logits, labels = _answers(model, batch)
    kind = model.config.problem_type
    if kind == "regression" or (kind is None and logits.shape[1:] == (1,)):
        return functional.mse_loss(logits, labels.view_as(logits).to(logits.dtype), reduction="none").mean(1)
    if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
        values = functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), reduction="none"
        )
        return values.mean(1)
    return functional.cross_entropy(logits, labels.view(-1), reduction="none")


def _of_tokens(model: Any, batch: Any) -> Tensor:
    return _over_own_tokens(*_answers(model, batch))


def _of_next_tokens(model: Any, batch: Any) -> Tensor:
    logits, labels = _answers(model, batch)
    return _over_own_tokens(logits[:, :-1], labels[:, 1:])


def _answers(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels; the model does not see the labels, or it would compute its mean loss as well."""
    if "labels" not in batch:
        raise InvalidParameter("batch", sorted(map(str, batch)), "must have 'labels', or give losses=.")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    logits: Tensor = model(**inputs).logits
    return logits.float(), batch["labels"]


def _over_own_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the tokens of each example that count; nothing for an example without any."""
    values = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return values.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)
