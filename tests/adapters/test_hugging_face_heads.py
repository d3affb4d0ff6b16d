"""Losses of the heads of Hugging Face models: for each example what the model says of it alone."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from discreet.adapters.hugging_face import losses_of  # noqa: E402
from discreet.errors import InvalidParameter  # noqa: E402
from discreet.pytorch import check  # noqa: E402

WORDS, ROWS, LENGTH = 20, 5, 6
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def words():
    lengths = torch.tensor([6, 2, 4, 3, 6])[:, None]
    mask = (torch.arange(LENGTH) < lengths).long()
    return {
        "input_ids": torch.randint(1, WORDS, (ROWS, LENGTH), generator=random()) * mask,
        "attention_mask": mask,
    }


def of_tokens(limit):
    batch = words()
    labels = torch.randint(limit, (ROWS, LENGTH), generator=random(1))
    return batch | {"labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}


def bert(name, **options):
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=8, **SMALL, **options)
    return getattr(transformers, name)(config)


def llama():
    config = transformers.LlamaConfig(vocab_size=WORDS, max_position_embeddings=8, **SMALL)
    return transformers.LlamaForCausalLM(config)


def gpt():
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def classes():
    return words() | {"labels": torch.randint(3, (ROWS,), generator=random(1))}


def numbers():
    return words() | {"labels": torch.randn(ROWS, generator=random(1))}


def several():
    return words() | {"labels": (torch.rand(ROWS, 3, generator=random(1)) < 0.5).float()}


HEADS = {
    "classes": (lambda: bert("BertForSequenceClassification", num_labels=3), classes),
    "numbers": (lambda: bert("BertForSequenceClassification", num_labels=1), numbers),
    "several labels": (lambda: bert("BertForSequenceClassification", num_labels=3), several),
    "classes of tokens": (lambda: bert("BertForTokenClassification", num_labels=3), lambda: of_tokens(3)),
    "masked words": (lambda: bert("BertForMaskedLM"), lambda: of_tokens(WORDS)),
    "next word": (llama, lambda: of_tokens(WORDS)),
    "next word, older name": (gpt, lambda: of_tokens(WORDS)),
    "encoder and decoder": (t5, lambda: of_tokens(WORDS)),
}


@pytest.mark.parametrize("head", HEADS)
def test_each_loss_is_the_one_of_the_example_alone(head):
    torch.manual_seed(0)
    build, batch = HEADS[head][0], HEADS[head][1]()
    model = build().eval()
    losses = losses_of(model)(model, batch)
    alone = [
        model(**{name: column[row : row + 1] for name, column in batch.items()}).loss for row in range(ROWS)
    ]
    torch.testing.assert_close(losses, torch.stack(alone), rtol=2e-4, atol=2e-5)


def test_the_models_own_loss_is_not_their_mean():
    """So that the comparison above is able to fail: a mean over all tokens weighs long examples more."""
    torch.manual_seed(0)
    model, batch = llama().eval().requires_grad_(False), of_tokens(WORDS)
    assert abs(float(losses_of(model)(model, batch).mean()) - float(model(**batch).loss)) > 1e-3


def test_they_keep_examples_apart():
    torch.manual_seed(0)
    model, batch = llama(), of_tokens(WORDS)
    check(model, losses_of(model), batch)


def test_an_example_without_labels_has_no_loss():
    model, batch = llama().eval(), of_tokens(WORDS)
    batch["labels"][2] = -100
    assert float(losses_of(model)(model, batch)[2].detach()) == 0.0


def test_an_unknown_head_and_missing_labels_are_told():
    with pytest.raises(
        InvalidParameter, match="BertForNextSentencePrediction: a function of model and batch"
    ):
        losses_of(bert("BertForNextSentencePrediction"))
    model = llama()
    with pytest.raises(InvalidParameter, match="must have 'labels'"):
        losses_of(model)(model, words())
