"""The global generators: what is drawn in a step is nobody's to know, and afterwards they are what they were."""

import math
import random

import numpy as np
import torch

from discreet.pytorch.checks import generators
from discreet.pytorch.checks.generators import unknown_draws
from discreet.pytorch.checks.seeded_generators import seeded


def test_unknown_draws_leave_all_generators_as_they_were():
    def drawn():
        return torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist()  # noqa: NPY002

    def seed():
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002

    seed()
    wanted = drawn(), drawn()
    seed()
    first, inside = drawn(), []
    for _ in range(2):
        with unknown_draws():
            inside.append(drawn())
            np.random.seed(5)  # noqa: NPY002
    assert (first, drawn()) == wanted
    assert all(one != other for one, other in zip(*inside, strict=True))


def test_nobody_can_try_all_states_of_unknown_draws(monkeypatch):
    """The broken twin is a seed: torch takes 32 bits of it, so that four billion of them are all there are."""

    def drawn_after(seed):
        return torch.rand(5, generator=torch.Generator().manual_seed(seed)).tolist()

    assert drawn_after(7) == drawn_after(7 + 2**32) == drawn_after(7 + 2**62)
    secret, found = bytearray(4 * 624), []
    monkeypatch.setattr(generators.secrets, "token_bytes", lambda count: bytes(secret[:count]))
    for place in (None, *range(4, len(secret), 4)):  # of its first word the generator uses a single bit
        if place is not None:
            secret[place] ^= 1
        with unknown_draws():
            found.append(tuple(torch.randint(2**31, (1300,)).tolist()))
    assert len(set(found)) == 624


def test_all_of_an_unknown_state_is_unknown_and_draws_as_any_other():
    """By six standard errors; a word of 32 bits is by chance what it was in one of seven million runs."""
    words = [generators._unknown_state().numpy()[generators._WHERE].view(np.uint64) for _ in range(2)]
    seeded = generators._JUST_SEEDED.numpy()[generators._WHERE].view(np.uint64)
    assert len(seeded) == 624
    assert len(set(seeded.tolist())) > 600
    assert (seeded < 2**32).all()
    for one, other in ((*words,), (words[0], seeded), (words[1], seeded)):
        assert (one < 2**32).all()
        assert (one != other).all()
    with unknown_draws():
        drawn = torch.rand(100_000).double()
    assert abs(float(drawn.mean()) - 0.5) < 6 / math.sqrt(12 * 100_000)
    assert abs(float((drawn[1:] * drawn[:-1]).mean()) - 0.25) < 6 * 0.22 / math.sqrt(100_000)


def test_unknown_draws_seed_other_accelerators_too(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "manual_seed", seeds.append)
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.xpu, "manual_seed_all", seeds.append)
    for _ in range(2):
        with unknown_draws():
            pass
    assert len(seeds) == 4
    assert seeds[0] != seeds[2]
    assert seeds[1] != seeds[3]


def test_no_seed_is_left_to_a_device_that_is_not_in_use(monkeypatch):
    """Torch would apply it when the device is initialised, which then begins with a seed that everybody knows."""
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with seeded(7):
        first = torch.rand(2)
    with seeded(7):
        assert torch.equal(first, torch.rand(2))
    assert seeds == []
