"""LoRA: a transformer adapted to private text by a few small matrices, everything else frozen.

A language model with the architecture of GPT-2 is built from a configuration, so nothing is downloaded. It is trained
on public sentences without privacy; then adapters of rank 4 learn private sentences of another kind.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import discreet as dp
from discreet.pytorch import PrivateRun, fit

PUBLIC = "the cat sat on the mat and the dog lay by the door while it rained on the old stone house "
PRIVATE = "patient is stable and was given two doses of the drug at noon with no fever since then "
LETTERS, LENGTH = sorted({*PUBLIC, *PRIVATE}), 16
RECORDS = 2000


class Adapter(nn.Module):
    """A frozen layer plus the product of two thin matrices, which begins at zero."""

    def __init__(self, frozen: nn.Module, width: int, out: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def language_model() -> GPT2LMHeadModel:
    small = GPT2Config(
        vocab_size=len(LETTERS), n_positions=LENGTH, n_embd=64, n_layer=1, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(small)


def adapted(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """The model frozen, with adapters in every attention and in front of the letters."""
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Adapter(block.attn.c_attn, 64, 3 * 64)
        block.mlp.c_fc = Adapter(block.mlp.c_fc, 64, 4 * 64)
    model.lm_head = Adapter(model.lm_head, 64, len(LETTERS))
    return model


def sentences(text: str, count: int, seed: int) -> Tensor:
    """Pieces of a text that is read over and over, a letter in twenty being a wrong one."""
    random = torch.Generator().manual_seed(seed)
    letters = torch.tensor([LETTERS.index(letter) for letter in text])
    start = torch.randint(len(text), (count, 1), generator=random)
    pieces = letters[(start + torch.arange(LENGTH)) % len(text)]
    wrong = torch.rand(pieces.shape, generator=random) < 0.05
    return torch.where(wrong, torch.randint(len(LETTERS), pieces.shape, generator=random), pieces)


def losses(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
    values = functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
    return values.mean(1)  # over each example's own letters


@torch.no_grad()
def surprise(model: nn.Module) -> float:
    return float(losses(model, sentences(PRIVATE, 500, seed=9)).mean())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = language_model()
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    public = sentences(PUBLIC, RECORDS, seed=1)
    fit(model, public, losses, records=RECORDS, epochs=5, batch_size=200, optimizer=adam, privacy=None)
    print(f"before: surprise {surprise(model):.2f} per letter of private sentences")

    model = adapted(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan = dp.Recipe(RECORDS, batch_size=400, epochs=8).calibrate(dp.Budget(epsilon=4.0, delta=1e-5))
    run = PrivateRun(plan, model, torch.optim.Adam(trained, lr=2e-2), losses, physical_batch_size=256)
    for batch in run.batches(sentences(PRIVATE, RECORDS, seed=2)):
        run.step(batch)
    spent = run.certificate().guarantee
    print(f"after:  surprise {surprise(model):.2f}, with {sum(p.numel() for p in trained)} numbers adapted")
    print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}")


if __name__ == "__main__":
    main()
