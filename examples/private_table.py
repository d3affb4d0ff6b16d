"""Which tumours are malignant, learnt with differential privacy from the 569 patients of scikit-learn's own data.

The bounds of the measurements are declared from knowledge, not from the records. Everything printed is released;
the accuracy is that of patients who were kept aside. Run with ``python examples/private_table.py``.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from discreet.linear import PrivateLogisticRegression

# What instruments report: means, standard errors and worst values of ten measurements of cell nuclei.
MEAN = [30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]
ERROR = [3, 5, 25, 550, 0.04, 0.15, 0.4, 0.06, 0.1, 0.03]
WORST = [40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21]


def main() -> None:
    patients = load_breast_cancer()
    x, x_test, y, y_test = train_test_split(patients.data, patients.target, test_size=0.2, random_state=0)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    print(f"without privacy           {plain.score(x_test, y_test):6.1%} of the test patients are told right")
    for epsilon in (0.5, 1.0, 3.0):
        model = PrivateLogisticRegression(
            epsilon, delta=1e-5, classes=(0, 1), bounds=(0, MEAN + ERROR + WORST)
        )
        model.fit(x, y)
        print(f"epsilon {epsilon:<4g} delta 1e-05   {model.score(x_test, y_test):6.1%}")
    print(f"\nThe last model is {model.certificate_.guarantee}.")
    print(f"\nIts certificate, verified again:\n{model.certificate_.verify()}")


if __name__ == "__main__":
    main()
