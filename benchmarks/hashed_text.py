"""Measure the AUC of hashed text with a declared row norm and with declared bounds: the figures of docs/linear.md.

    python benchmarks/hashed_text.py

The synthetic messages are those of ``curves_safety.py``: 4400 to fit and 4000 to test, 256 columns, rows of norm 1.
"""

import warnings
from statistics import median

import numpy as np
from sklearn.metrics import roc_auc_score

from curves_safety import text
from discreet.linear import PrivateLogisticRegression

EPSILON, DELTA, FITS = 0.1, 1e-6, 9
DECLARATIONS = {"row_norm=1.0": {"row_norm": 1.0}, "bounds=(0, 1)": {"bounds": (0, 1)}}


def main() -> None:
    warnings.simplefilter("ignore")
    table = text()
    rows, labels, records = np.asarray(table.x, np.float64), np.asarray(table.y), table.records
    print(f"AUC at epsilon {EPSILON:g} on {records} messages, {FITS} fits: median (smallest to largest)")
    for name, declared in DECLARATIONS.items():
        scores = []
        for _ in range(FITS):
            model = PrivateLogisticRegression(epsilon=EPSILON, delta=DELTA, **declared)
            model.fit(rows[:records], labels[:records])
            scores.append(roc_auc_score(labels[records:], model.predict_proba(rows[records:])[:, 1]))
        print(f"{name:14} {median(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})")


if __name__ == "__main__":
    main()
