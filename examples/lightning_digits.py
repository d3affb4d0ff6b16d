"""PyTorch Lightning: the trainer, its callbacks and its validation, and private records.

`LightningModule` has become `PrivateModule`, and `training_step` has become `losses`: one loss per example.
"""

import tempfile

import torch
from lightning.pytorch import Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import discreet as dp
from discreet.adapters import PrivateModule

RECORDS = 1497  # public: the other 300 of the digits are for testing


class Digits(PrivateModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self(images), labels, reduction="none")

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.plan.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        images, labels = batch  # of the test digits, which nobody protects
        self.log("right", (self(images).argmax(1) == labels).float().mean())


def digits() -> tuple[TensorDataset, TensorDataset]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.data, dtype=torch.float32)[order] / 16  # the range of a pixel is public
    labels = torch.tensor(found.target)[order]
    return (
        TensorDataset(images[:RECORDS], labels[:RECORDS]),
        TensorDataset(images[RECORDS:], labels[RECORDS:]),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = digits()
    plan = dp.Recipe(RECORDS, batch_size=256, epochs=25).calibrate(dp.Budget(epsilon=3.0, delta=1e-5))
    module = Digits().train_on(train, plan)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    with tempfile.TemporaryDirectory() as place:
        trainer = Trainer(max_epochs=-1, accelerator="cpu", default_root_dir=place, **quiet)
        trainer.fit(module, val_dataloaders=DataLoader(test, batch_size=300))
    spent = module.certificate().guarantee
    print(f"{trainer.callback_metrics['right']:.0%} of {len(test)} test digits are told right")
    print(f"  epsilon {spent.epsilon.upper:.3f} at delta {spent.delta:g}")


if __name__ == "__main__":
    main()
