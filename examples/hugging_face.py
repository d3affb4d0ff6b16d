"""Hugging Face: the `Trainer` that everybody knows, LoRA by `peft`, and private records.

A small model with the architecture of Llama is built from a configuration, so nothing is downloaded. It learns public
sentences with the plain `Trainer`; then adapters of rank 4 learn private ones with `PrivateTrainer`. What has changed
between the two is `plan=`.
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import discreet as dp
from discreet.adapters import PrivateTrainer

PUBLIC = "the cat sat on the mat and the dog lay by the door while it rained on the old stone house "
PRIVATE = "patient is stable and was given two doses of the drug at noon with no fever since then "
LETTERS = sorted({*PUBLIC, *PRIVATE})
RECORDS = 1000


def sentences(text: str, count: int, seed: int) -> list[dict[str, list[int]]]:
    """Pieces of a text that is read over and over, of 10 to 16 letters."""
    random = torch.Generator().manual_seed(seed)
    pieces = []
    for start, length in zip(
        torch.randint(len(text), (count,), generator=random).tolist(),
        torch.randint(10, 17, (count,), generator=random).tolist(),
        strict=True,
    ):
        letters = (text + text)[start : start + length]
        pieces.append({"input_ids": [LETTERS.index(letter) for letter in letters]})
    return pieces


def padded(pieces: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest piece; what was added does not count, by the label -100."""
    longest = max(len(piece["input_ids"]) for piece in pieces)

    def column(filling: int) -> torch.Tensor:
        rows = [piece["input_ids"] for piece in pieces]
        return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])

    return {"input_ids": column(0), "labels": column(-100), "attention_mask": (column(-1) >= 0).long()}


def arguments(place: str, learning_rate: float, **more: object) -> TrainingArguments:
    quiet = {
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "use_cpu": True,
    }
    return TrainingArguments(
        place, learning_rate=learning_rate, per_device_train_batch_size=128, **quiet, **more
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(LETTERS), max_position_embeddings=16, **size))

    with tempfile.TemporaryDirectory() as place:
        public = {"train_dataset": sentences(PUBLIC, RECORDS, seed=1), "data_collator": padded}
        Trainer(model, arguments(place, 5e-3, num_train_epochs=4), **public).train()

        adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"])
        adapted = get_peft_model(model, adapters)
        plan = dp.Recipe(RECORDS, batch_size=250, epochs=8).calibrate(dp.Budget(epsilon=4.0, delta=1e-5))
        trainer = PrivateTrainer(
            adapted,
            arguments(place, 2e-2, lr_scheduler_type="cosine"),
            plan=plan,
            train_dataset=sentences(PRIVATE, RECORDS, seed=2),
            eval_dataset=sentences(PRIVATE, 300, seed=9),  # made up for the example, so nobody's
            data_collator=padded,
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    spent = trainer.certificate().guarantee
    trained = sum(value.numel() for value in adapted.parameters() if value.requires_grad)
    print(f"surprise per letter {before:.2f} before, {after:.2f} after, with {trained} numbers adapted")
    print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}")


if __name__ == "__main__":
    main()
