"""One loss per example for the heads of Hugging Face models: :func:`losses_of`.

``model(**batch).loss`` is a mean over the batch, and for text over all of its tokens, so that long examples outweigh
short ones. These losses are what it is for each example alone, computed for all of them at once from the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from discreet.errors import InvalidParameter
from discreet.pytorch.per_example import Losses

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
