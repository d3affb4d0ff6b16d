"""DP-EBM, the private explainable boosting machine of interpret, on a table of the additive benchmark.

It runs in an environment of its own and knows nothing of Discreet: reads one .npz file, prints one JSON line for each
epsilon. Every setting is its default; bounds of columns and target are given, as ours are. Categories are given as
such, not as one-hot columns.
"""

import argparse
import json
import time
import warnings

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score


def as_given(x, numerics, groups):
    """Numbers as they are, each group of one-hot columns as one column of codes; -1 is none of them."""
    columns, start = [x[:, j] for j in range(numerics)], numerics
    for size in groups:
        block = x[:, start : start + size]
        columns.append(np.where(block.any(axis=1), block.argmax(axis=1), -1))
        start += size
    return np.column_stack(columns)


def fitted(data, epsilon, delta, seed):
    numerics, groups = int(data["numerics"]), data["groups"].tolist()
    known = {
        "feature_types": ["continuous"] * numerics + ["nominal"] * len(groups),
        "privacy_bounds": dict.fromkeys(range(numerics), (0.0, 1.0)),
        "epsilon": epsilon,
        "delta": delta,
        "random_state": seed,
        "n_jobs": 1,
    }
    if str(data["score"]) == "R2":
        model = DPExplainableBoostingRegressor(**known, privacy_target_min=0.0, privacy_target_max=1.0)
    else:
        model = DPExplainableBoostingClassifier(**known)
    return model.fit(as_given(data["x_train"], numerics, groups), data["y_train"])


def scored(data, model):
    test, truth, score = data["x_test"], data["y_test"], str(data["score"])
    rows = as_given(test, int(data["numerics"]), data["groups"].tolist())
    if score == "R2":
        return r2_score(truth, np.clip(model.predict(rows), 0, 1))
    if score == "AUC":
        return roc_auc_score(truth, model.predict_proba(rows)[:, 1])
    return 100 * float(np.mean(model.predict(rows) == truth))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument("--epsilons", required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    data = np.load(arguments.file)
    for epsilon in map(float, arguments.epsilons.split(",")):
        start = time.process_time()
        model = fitted(data, epsilon, arguments.delta, arguments.seed)
        seconds = time.process_time() - start
        found = {"epsilon": epsilon, "score": scored(data, model), "seconds": seconds}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
