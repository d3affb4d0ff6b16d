"""The usual networks for images and points, small and with group norm: units that are used everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, SIDE, EXAMPLES = 3, 12, 6


def conv(into: int, out: int, size: int = 3, act: type[nn.Module] = nn.ReLU, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(into, out, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(layer, nn.GroupNorm(out // 4, out), act())


def classifier(width: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class Residual(nn.Module):
    def __init__(self, body: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.last = body, last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.body(x))


class Shuffled(nn.Module):
    """Half of the channels pass by, and then all are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        depthwise = nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False)
        self.body = nn.Sequential(conv(half, half, 1), depthwise, nn.GroupNorm(2, half), conv(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        out = torch.cat([one, self.body(other)], 1)
        return out.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Squeezed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()


def inverted(width: int, act: type[nn.Module]) -> nn.Module:
    return Residual(
        nn.Sequential(
            conv(width, 2 * width, 1, act),
            conv(2 * width, 2 * width, 3, act, groups=2 * width),
            Squeezed(2 * width),
            nn.Conv2d(2 * width, width, 1, bias=False),
            nn.GroupNorm(2, width),
        )
    )


class Dense(nn.Module):
    def __init__(self, width: int, grow: int) -> None:
        super().__init__()
        self.body = conv(width, grow)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class Mixer(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.over_places = nn.Sequential(nn.Linear(places, 8), nn.GELU(), nn.Linear(8, places))
        self.over_channels = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_places(self.norms[0](x).mT).mT
        return x + self.over_channels(self.norms[1](x))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = conv(3, 8), conv(8, 8)
        self.up, self.head = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down(x)
        other = self.up(self.middle(F.max_pool2d(one, 2)))
        return self.head(torch.cat([one, other], 1)).mean((2, 3))


class Points(nn.Module):
    """PointNet: each example is a set."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(2).mT).amax(1))


class Scaled(nn.Module):
    """ConvNeXt's block: depthwise, layer norm over channels, LayerScale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(1e-3 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(out)))).permute(0, 3, 1, 2)


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return self._conv_forward(x, w, self.bias)


VISION: dict[str, Callable[[], nn.Module]] = {
    "ResNet": lambda: classifier(
        8,
        conv(3, 8),
        *(Residual(nn.Sequential(conv(8, 8), conv(8, 8, act=nn.Identity)), nn.ReLU()) for _ in range(2)),
    ),
    "VGG": lambda: classifier(16, conv(3, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d(2)),
    "ShuffleNet": lambda: classifier(16, conv(3, 16), Shuffled(16), Shuffled(16)),
    "EfficientNet": lambda: classifier(
        8, conv(3, 8, act=nn.SiLU), inverted(8, nn.SiLU), inverted(8, nn.SiLU)
    ),
    "MobileNetV3": lambda: classifier(8, conv(3, 8, act=nn.Hardswish), inverted(8, nn.Hardswish)),
    "MobileNetV2": lambda: classifier(8, conv(3, 8, act=nn.ReLU6), inverted(8, nn.ReLU6)),
    "DenseNet": lambda: classifier(16, conv(3, 8), Dense(8, 4), Dense(12, 4)),
    "MLP-Mixer": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), Transposed(), Mixer(9, 8), Mean(), nn.Linear(8, CLASSES)
    ),
    "UNet": Unet,
    "PointNet": Points,
    "ConvNeXt": lambda: classifier(8, nn.Conv2d(3, 8, 4, stride=4), Scaled(8), Scaled(8)),
    "standardised ResNet": lambda: classifier(
        8,
        Standardised(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        Residual(Standardised(8, 8, 3, padding=1)),
    ),
    "SqueezeNet": lambda: classifier(
        16, nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), Dense(8, 8), nn.Conv2d(16, 16, 1)
    ),
}


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def losses(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def vision_problem(name: str, seed: int = 0) -> tuple[nn.Module, Any, Any]:
    """Another seed gives other weights and other images."""
    torch.manual_seed(seed)
    model = VISION[name]()
    return model, losses, (torch.randn(EXAMPLES, 3, SIDE, SIDE), torch.arange(EXAMPLES) % CLASSES)
