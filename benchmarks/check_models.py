"""Models for ``benchmarks/check.py``: the banks of the tests, and those of packages that may be installed.

peft comes with ``discreet[bench]``. torchvision and timm are used where they can be imported; the wheels of
torchvision for CUDA cannot, beside a torch without it, so they are no part of the extra.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pytorch as steps

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from discreet.pytorch import without_batch_norm
from support.real_models import CLASSES, EXAMPLES, REAL, Problem, real_problem
from support.torch_bank import NAMES, cross_entropy, problem
from support.vision_models import VISION, vision_problem

Build = Callable[[], Problem]


def own(name: str) -> Build:
    def build() -> Problem:
        model, batch = problem(name)
        return model, cross_entropy, batch

    return build


ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 4, "target_modules": ["query", "value"]}),
    "LoRA of all layers": ("LoraConfig", {"r": 4, "target_modules": "all-linear"}),
    "rank-stabilised LoRA": ("LoraConfig", {"r": 4, "target_modules": ["query"], "use_rslora": True}),
    "DoRA": ("LoraConfig", {"r": 4, "target_modules": ["query"], "use_dora": True}),
    "IA3": ("IA3Config", {"target_modules": ["key", "dense"], "feedforward_modules": ["dense"]}),
    "AdaLoRA": ("AdaLoraConfig", {"target_modules": ["query"], "total_step": 100, "tinit": 1, "tfinal": 1}),
    "LoHa": ("LoHaConfig", {"r": 2, "target_modules": ["query"]}),
    "LoKr": ("LoKrConfig", {"r": 2, "target_modules": ["query"]}),
    "OFT": ("OFTConfig", {"oft_block_size": 4, "target_modules": ["query"]}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4, "target_modules": ["query"]}),
    "VeRA": ("VeraConfig", {"r": 4, "target_modules": ["query"]}),
    "HRA": ("HRAConfig", {"r": 4, "target_modules": ["query"]}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 8, "target_modules": ["query"]}),
    "LN tuning": ("LNTuningConfig", {"target_modules": ["LayerNorm"]}),
    "prompts": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
    "prefixes": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
    "P-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
}


def adapted(kind: str) -> Build:
    def build() -> Problem:
        import peft

        model, losses, batch = real_problem("BertForSequenceClassification")
        config, settings = ADAPTERS[kind]
        made = peft.get_peft_model(model, getattr(peft, config)(task_type="SEQ_CLS", **settings))
        return made.eval(), losses, batch

    return build


TORCHVISION = (
    "resnet18",
    "shufflenet_v2_x0_5",
    "efficientnet_b0",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "squeezenet1_1",
)
TORCHVISION += (
    "densenet121",
    "mnasnet0_5",
    "regnet_y_400mf",
    "convnext_tiny",
    "googlenet",
    "swin_t",
)
TIMM = (
    "resnet10t",
    "efficientnet_lite0",
    "mobilenetv3_small_050",
    "vit_tiny_patch16_224",
    "mixer_s32_224",
    "convnext_atto",
)
TIMM += (
    "regnetx_002",
    "ghostnet_050",
    "lcnet_050",
    "tinynet_e",
    "resmlp_12_224",
    "gmixer_12_224",
    "nf_resnet26",
)


def pictures(model: Any, batch: Any) -> Tensor:
    scores = model(batch[0])
    return F.cross_entropy(
        scores if isinstance(scores, Tensor) else scores.logits, batch[1], reduction="none"
    )


def picture_model(package: str, name: str, seed: int = 0) -> Build:
    def build() -> Problem:
        torch.manual_seed(seed)
        if package == "timm":
            made = importlib.import_module("timm").create_model(name, num_classes=CLASSES)
            side = 224 if "224" in name else 64
        else:
            options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
            made = getattr(importlib.import_module("torchvision.models"), name)(
                num_classes=CLASSES, **options
            )
            side = 64
        batch = (torch.randn(EXAMPLES, 3, side, side), torch.arange(EXAMPLES) % CLASSES)
        return without_batch_norm(made).eval(), pictures, batch

    return build


def importable(package: str) -> bool:
    """A torchvision whose compiled part does not load is of use all the same: its models are Python."""
    try:
        if package in ("torchvision", "timm"):
            _define_missing_operators()
        importlib.import_module(package)
    except Exception as error:  # whatever is wrong with it, it cannot be used
        print(f"{package}: left out ({type(error).__name__}: {str(error).splitlines()[0][:80]})")
        return False
    return True


_LIBRARIES: list[Any] = []  # an operator lives as long as its library


def _define_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _LIBRARIES.append(library)


def everything() -> Iterator[tuple[str, str, Build]]:
    """Where it comes from, its name, and how it is built."""
    for name in NAMES:
        yield "own layers", name, own(name)
    for name in VISION:
        yield "by hand", name, lambda name=name: vision_problem(name)
    for name in REAL:
        yield "transformers", name, lambda name=name: real_problem(name)
    if importable("peft"):
        for name in ADAPTERS:
            yield "peft", name, adapted(name)
    for package, names in (("torchvision", TORCHVISION), ("timm", TIMM)):
        if importable(package):
            for name in names:
                yield package, name, picture_model(package, name)


class Branchy(nn.Module):
    """Nothing but ReLU and max: where one flips by rounding, single examples and batches disagree."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.maximum(layer(x).relu(), x.flip(1))
        return self.head(x)


def branchy(seed: int) -> Problem:
    torch.manual_seed(seed)
    return Branchy(), pictures, (torch.randn(32, 64), torch.arange(32) % CLASSES)


SEEDED_REAL = (
    "ResNetForImageClassification",
    "RegNetForImageClassification",
    "EfficientNetForImageClassification",
    "MobileNetV2ForImageClassification",
    "BertForSequenceClassification",
    "MixtralForCausalLM",
    "GPT2ForSequenceClassification",
)


def residual(seed: int) -> Problem:
    """The ResNet of ``make bench-torch``, on which the check was wrong with one seed in 24."""
    torch.manual_seed(seed)
    return steps.WORKLOADS["ResNet"][0](), pictures, (torch.randn(4, 3, 32, 32), torch.arange(4) % 10)


OF_TORCHVISION = ("shufflenet_v2_x0_5", "efficientnet_b0", "mobilenet_v2", "resnet18", "squeezenet1_1")


@cache
def kinds_of_honest() -> list[str]:
    more = OF_TORCHVISION if importable("torchvision") else ()
    return [*VISION, *SEEDED_REAL, "branchy", "benchmark ResNet", *more]


def honest(seed: int) -> tuple[str, Problem]:
    """The model of a seed: architectures take turns, weights and batches are their own."""
    kinds = kinds_of_honest()
    kind = kinds[seed % len(kinds)]
    if kind in OF_TORCHVISION:
        return kind, picture_model("torchvision", kind, seed)()
    if kind in ("branchy", "benchmark ResNet"):
        return kind, (branchy if kind == "branchy" else residual)(seed)
    if kind in VISION:
        return kind, vision_problem(kind, seed)
    model, losses, batch = real_problem(kind)
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.02 * torch.randn_like(value))
    if "pixel_values" in batch:
        batch = batch | {"pixel_values": torch.randn_like(batch["pixel_values"])}
    return kind, (model.train(), losses, batch)
