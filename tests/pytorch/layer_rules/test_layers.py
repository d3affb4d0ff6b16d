"""Every kind of layer against a loop over single examples in float64."""

import pytest
import torch

from discreet.core.clipping import Flat
from discreet.pytorch.clipped_sum import ClippedSum
from discreet.pytorch.mapped_gradients import mapped_gradients, per_example_gradients
from support.torch_bank import NAMES, cross_entropy, problem

CLIP = 0.3


def reference(name, clip=CLIP):
    """Norms and the clipped sum, by the definition."""
    model, batch = problem(name, torch.float64)
    rows = per_example_gradients(model, cross_entropy, batch)
    norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in rows.values()]).sum(0).sqrt()
    factors = (clip / norms).clamp(max=1)
    return norms, {name: torch.einsum("b,b...->...", factors, g) for name, g in rows.items()}


def distance(found, wanted):
    assert list(found) == list(wanted)
    assert all(found[name].shape == wanted[name].shape for name in wanted)
    size = sum(value.square().sum() for value in wanted.values()).sqrt()
    return sum((found[name] - wanted[name]).square().sum() for name in wanted).sqrt() / size


def test_the_bank_is_large():
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_sums(name):
    norms, sums = reference(name)
    assert (norms > CLIP).any()
    for dtype, of_norm, of_sum in ((torch.float32, 1e-6, 1e-5), (torch.float64, 1e-12, 1e-11)):
        model, batch = problem(name, dtype)
        engine = ClippedSum(model, cross_entropy, Flat(CLIP))
        assert distance(engine(batch), sums) < of_sum
        torch.testing.assert_close(engine.norms(batch), norms, rtol=of_norm, atol=0)


# What the engine does by torch.func or by a loop; all other models of the bank go by rules alone.
WITHOUT_RULE = {"bilinear", "PReLU", "einsum", "embedding bag", "one by one"} | {
    "attention time first",
    "sorted by content",
    "weight changed in place",
}


@pytest.mark.parametrize("name", NAMES)
def test_one_backward_pass_is_enough(name, monkeypatch):
    """Layers with a rule never fall back to single gradients, which would be right and slow."""
    asked = []
    monkeypatch.setattr(
        "discreet.pytorch.clipped_sum.mapped_gradients", lambda *a: asked.extend(a[3]) or mapped_gradients(*a)
    )
    model, batch = problem(name)
    ClippedSum(model, cross_entropy, Flat(CLIP))(batch)
    assert bool(asked) == (name in WITHOUT_RULE)


@pytest.mark.parametrize(
    "name", ["mlp, in-place", "conv2d stride", "LSTM", "GPT tied", "weight norm", "LoRA"]
)
def test_half_precision_is_measured_in_float32(name):
    """Against single examples in bfloat16, whose gradients are rounded to three digits."""
    model, batch = problem(name, torch.bfloat16)
    engine = ClippedSum(model, cross_entropy, Flat(CLIP))
    sums = engine(batch)
    assert all(value.dtype == torch.float32 for value in sums.values())
    rows = per_example_gradients(model, cross_entropy, batch)
    norms = torch.stack([g.double().reshape(len(g), -1).square().sum(1) for g in rows.values()]).sum(0).sqrt()
    torch.testing.assert_close(engine.norms(batch), norms, rtol=0.03, atol=0)
    assert distance(sums, reference(name)[1]) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_torch_func_agrees_with_the_loop_where_it_can(name):
    model, batch = problem(name, torch.float64)
    rows = per_example_gradients(model, cross_entropy, batch)
    try:
        mapped = mapped_gradients(model, cross_entropy, batch)
    except Exception:  # a refusal is fine: the engine then takes the loop
        return
    for key, value in rows.items():
        torch.testing.assert_close(mapped[key], value)
