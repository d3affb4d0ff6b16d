"""Hugging Face models, built from a configuration: exact gradients, private training, refusal of their own loss."""

import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from discreet import Recipe
from discreet.core.clipping import Flat
from discreet.pytorch import CheckFailed, PrivateRun, check
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import per_example_gradients

WORDS = 50


def bert():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=WORDS, max_position_embeddings=16, num_labels=3, **size)
    return BertForSequenceClassification(config).train()


def gpt():
    torch.manual_seed(0)
    size = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **size)
    return GPT2LMHeadModel(config).train()  # its embedding and its output layer share their weight


def data(rows=30):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 9, (rows, 1), generator=generator)
    return {
        "input_ids": torch.randint(WORDS, (rows, 8), generator=generator),
        "attention_mask": (torch.arange(8) < lengths).long(),
        "labels": torch.randint(3, (rows,), generator=generator),
    }


def classification(model, batch):
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def language(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    values = functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    mask = batch["attention_mask"][:, 1:]
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


KINDS = pytest.mark.parametrize(
    ("build", "losses"), [(bert, classification), (gpt, language)], ids=["bert", "gpt"]
)


@KINDS
def test_gradients_are_those_of_single_examples(build, losses):
    model = build().eval()
    batch = {name: value[:5] for name, value in data().items()}
    rows = per_example_gradients(model, losses, batch)
    norms = torch.stack([value.flatten(1).double().square().sum(1) for value in rows.values()]).sum(0).sqrt()
    rule = Flat(float(norms.median()))
    factors = torch.from_numpy(rule.factors(norms.numpy()))
    for name, total in ClippedSum(model, losses, rule)(batch).items():
        expected = torch.tensordot(factors, rows[name].double(), 1)
        assert float((total - expected).norm()) < 2e-5 * rule.clip_norm


@KINDS
def test_private_training_with_dropout(build, losses):
    model = build()
    plan = Recipe(records=30, batch_size=10, steps=3).with_noise(1.0, delta=1e-3)
    run = PrivateRun(plan, model, torch.optim.AdamW(model.parameters(), lr=1e-3), losses)
    for batch in run.batches(data()):
        run.step(batch)
    assert run.steps_taken == 3
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_their_own_loss_is_a_mean_and_refused():
    with pytest.raises(CheckFailed, match=r'one number for the whole batch.*reduction="none"'):
        check(bert(), lambda model, batch: model(**batch).loss, data())


def test_a_token_mean_is_refused_however_it_is_shaped():
    def token_mean(model, batch):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = functional.cross_entropy(
            model(input_ids=batch["input_ids"]).logits[:, :-1].transpose(1, 2),
            labels[:, 1:],
            reduction="none",
        )
        return loss.sum(1) / (labels[:, 1:] != -100).sum()

    with pytest.raises(CheckFailed, match=r"whole batch|the loss function mixes"):
        check(gpt(), token_mean, data())
