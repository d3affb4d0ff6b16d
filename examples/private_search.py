"""Which clip norm and which number of steps? A search on private records, at its true cost.

The best of a random, secret number of trials costs little more than one trial. Scores are taken from public records,
here patients who gave their consent. Run with ``python examples/private_search.py``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import discreet as dp
from discreet.lecture import Clip, private_descent
from discreet.linear import Logistic
from discreet.selection import PrivateSearch, geometric_trials

WIDEST = np.array(
    [40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21]
)  # declared, in the units of the instruments
CANDIDATES = [(clip, steps) for clip in (0.1, 0.3, 1.0) for steps in (20, 80)]


def main() -> None:
    patients = load_breast_cancer()
    features = np.column_stack([np.ones(len(patients.data)), patients.data[:, 20:] / WIDEST - 0.25])
    x, x_public, y, y_public = train_test_split(features, patients.target, test_size=0.25, random_state=0)
    trial = dp.Budget(epsilon=1.0, delta=1e-6, neighbours="replace-one")
    noise = dp.calibrate(lambda z: dp.Gaussian(z), trial)

    def train(candidate: tuple[float, int]) -> np.ndarray:
        clip, steps = candidate
        found = private_descent(Logistic(), x, y, trial, steps=steps, step_size=4 / clip, route=Clip(clip))
        return np.asarray(found.value)

    def accuracy(theta: np.ndarray) -> float:
        return float(np.mean((x_public @ theta > 0) == y_public))

    search = PrivateSearch(trial=dp.Gaussian(noise), trials=geometric_trials(mean=8))
    best = search.run(CANDIDATES, train, accuracy)
    clip, steps = best.candidate
    print(
        f"selected: clip norm {clip:g}, {steps} steps; {best.score:.1%} of the public patients are told right"
    )
    guarantee = search.guarantee(1e-5, "replace-one")
    print(f"one trial: {dp.account(dp.Gaussian(noise), 'replace-one').guarantee(1e-5)}")
    print(f"the search, about 8 trials: {guarantee}")
    alone = dp.account(dp.Gaussian(noise) * 8, "replace-one").epsilon(1e-5)
    print(f"(to publish all 8 would cost epsilon {alone:.3g})")


if __name__ == "__main__":
    main()
