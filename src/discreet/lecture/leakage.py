"""The lectures' toy example: a model that was trained on Bob's record answers a question about Bob.

The model learns from sentences "<name> has <condition>" how likely each name is to have cancer: a logistic
regression with one coefficient for each name, trained by gradient descent on clipped gradients. Bob has one sentence.
Without noise his coefficient moves if and only if his sentence was there, so the answer gives him away every
time. With noise the two answers overlap as much as the certified curve says.

>>> attack = toy_leakage(runs=2000, noise_multiplier=None, stream=RandomStream(unsafe_seed=0))
>>> attack.accuracy, attack.contradicts
(1.0, True)
>>> private = toy_leakage(runs=2000, noise_multiplier=4.0, stream=RandomStream(unsafe_seed=0))
>>> private.accuracy < 0.9, private.contradicts
(True, False)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.account import account
from discreet.audit.membership import Membership, membership
from discreet.core.noise import BoundedSum, add_noise
from discreet.core.randomness import RandomStream, system_stream
from discreet.errors import whole
from discreet.events import Gaussian

Floats = NDArray[np.float64]

NAMES, STEPS, CLIP_NORM, STEP_SIZE, CLAIMED = 10, 10, 0.5, 1.0, 4.0


def toy_leakage(
    *, runs: int = 5000, noise_multiplier: float | None = CLAIMED, stream: RandomStream | None = None
) -> Membership:
    """Ask ``runs`` models with Bob's sentence and as many without it, and compare with the certified curve.

    ``noise_multiplier`` None trains without noise, and is held against the claim of a noise multiplier of 4.
    """
    runs, stream = whole("runs", runs, at_least=4), stream or system_stream()
    noise = None if noise_multiplier is None else Gaussian(noise_multiplier)
    curve = account((noise or Gaussian(CLAIMED)) * STEPS)
    with_bob, without = (answers(bob, runs, noise, stream) for bob in (True, False))
    return membership(with_bob, without, curve)


def answers(bob: bool, runs: int, noise: Gaussian | None, stream: RandomStream) -> Floats:
    """How likely each of ``runs`` models says that Bob, the last of the names, has cancer.

    Guarantee: with ``noise``, each model costs ``noise * STEPS`` under add-remove neighbours.
    """
    sentences = np.full(NAMES, 3.0)  # of each name, half of which say so and half of which do not
    scores = np.zeros((runs, NAMES))
    for _ in range(STEPS):
        # The gradient of a sentence is (probability - label) on its name's coordinate: 1 at most, clipped to 1/2.
        chance = 1 / (1 + np.exp(-scores))
        total = sentences * (np.clip(chance - 1, -CLIP_NORM, CLIP_NORM) + np.clip(chance, 0, CLIP_NORM))
        total[:, -1] = np.clip(chance[:, -1] - 1, -CLIP_NORM, CLIP_NORM) if bob else 0.0
        if noise is not None:
            total = add_noise(BoundedSum(total, CLIP_NORM), noise, stream)
        scores -= STEP_SIZE * total
    return np.asarray(1 / (1 + np.exp(-scores[:, -1])))
