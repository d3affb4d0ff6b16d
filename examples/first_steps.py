"""Statistics of real patients, released with differential privacy, and what a training run would cost.

The records are the 569 tumours of scikit-learn's breast cancer data. Nothing is learnt from them but what is
printed, and each number comes with what it cost. Run with ``make demo``.
"""

from sklearn.datasets import load_breast_cancer

import discreet as dp
from discreet.statistics.mean import Interval, private_mean

DELTA = 1e-5


def released_statistics() -> None:
    patients = load_breast_cancer()
    malignant = patients.target == 0
    radius = patients.data[:, 0]  # in micrometres; instruments report 5 to 30
    budget = dp.Budget(epsilon=0.5, delta=DELTA, neighbours="replace-one")
    share = private_mean(malignant, budget, Interval(0, 1))
    size = private_mean(radius, budget, Interval(5.0, 30.0))
    print(f"{len(radius)} patients; each statistic may cost epsilon {budget.epsilon:g} at delta {DELTA:g}")
    print(
        f"  share of malignant tumours   {share.value:6.3f}   (predicted error {share.predicted_error:.3f})"
    )
    print(f"  mean radius of the nuclei    {size.value:6.2f}   (predicted error {size.predicted_error:.2f})")
    both = dp.account(share.event + size.event, neighbours="replace-one")
    print(f"  both together: {both.guarantee(DELTA)}")


def planned_training() -> None:
    step = dp.PoissonSampled(rate=0.01, of=dp.Gaussian(noise_multiplier=4.0))
    curve = dp.account(step * 10_000)
    lower, upper = curve.epsilon_bounds(DELTA)
    print("\nDP-SGD, 100 epochs at rate 0.01 and noise multiplier 4")
    print(f"  epsilon at delta {DELTA:g} is proved to lie between {lower:.4f} and {upper:.4f}")
    print(f"  best attack at 1 % false alarms finds at most {curve.power(0.01):.1%} of the records")
    noise = dp.calibrate(lambda z: dp.PoissonSampled(0.01, dp.Gaussian(z)) * 10_000, dp.Budget(0.5, DELTA))
    print(f"  for epsilon 0.5 the noise multiplier must be {noise:.3f}")


if __name__ == "__main__":
    released_statistics()
    planned_training()
    print("\nRead on: docs/linear.md, docs/plans.md, docs/accounting.md, docs/mathematics.md")
