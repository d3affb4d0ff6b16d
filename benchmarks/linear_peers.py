"""What the peers reach on one encoded table: diffprivlib, and Opacus with its defaults and with a tuned grid.

It runs in an environment of its own (`make` keeps it in .venv-peers), because diffprivlib needs an older
scikit-learn. The grid's settings are picked on the test records, which flatters it.

    python linear_peers.py table.npz --epsilon 1 --delta 1e-5 --seeds 3     # prints one JSON line for each peer
"""

import argparse
import itertools
import json
import time
import warnings

import numpy as np

GRID = {"learning_rate": (0.5, 2.0, 8.0), "clip": (0.3, 1.0), "batch": (512, 2048), "epochs": (10, 30)}
DEFAULT = {"learning_rate": 0.1, "clip": 1.0, "batch": 256, "epochs": 10}


def diffprivlib_scores(train, test, epsilon, seed):
    """Pure epsilon, with the largest norm of a record taken from the public bounds."""
    from diffprivlib.models import LogisticRegression

    x, y = train
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(epsilon=epsilon, data_norm=np.sqrt(x.shape[1]), random_state=seed)
        model.fit(x, y)
    return model.decision_function(test[0])


def dp_ebm_scores(train, test, epsilon, delta, groups, seed):
    """Boosted curves (Nori et al. 2021) on the table as it was before categories were encoded, bounds declared."""
    from interpret.privacy import DPExplainableBoostingClassifier

    (x, y), types = train, ["continuous"] * groups[0] + ["nominal"] * (len(groups) - 1)
    bounds = dict.fromkeys(range(groups[0]), (0.0, 1.0))
    settings = {"feature_types": types, "privacy_bounds": bounds, "random_state": seed, "n_jobs": 1}
    model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=delta, **settings)
    model.fit(decoded(x, groups), y)
    return model.predict_proba(decoded(test[0], groups))[:, 1] - 0.5


def decoded(x, groups):
    """The columns as they were: numbers, and for each category the place of its one."""
    numerics, *sizes = groups
    ends = np.cumsum([numerics, *sizes])
    parts = [x[:, start:end] for start, end in itertools.pairwise(ends)]
    places = [np.where(part.any(1), part.argmax(1), -1).astype(float) for part in parts]
    return np.column_stack([x[:, :numerics].astype(float), *places])


def opacus_scores(train, test, epsilon, delta, seed, settings):
    """Logistic regression by DP-SGD as Opacus' own tutorials do it."""
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    x, y = (torch.tensor(part, dtype=torch.float32) for part in train)
    model = torch.nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=settings["batch"])
    model, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=delta,
        epochs=settings["epochs"],
        max_grad_norm=settings["clip"],
    )
    loss = torch.nn.BCEWithLogitsLoss()
    for _ in range(settings["epochs"]):
        for features, labels in loader:
            optimizer.zero_grad()
            if len(labels):
                loss(model(features).squeeze(1), labels).backward()
                optimizer.step()
    with torch.no_grad():
        return model(torch.tensor(test[0], dtype=torch.float32)).squeeze(1).numpy()


def measured(name, scores, truth, seeds):
    start = time.process_time()
    told = [np.asarray(scores(seed), float) for seed in range(seeds)]
    seconds = (time.process_time() - start) / seeds
    found = {"accuracy": [np.mean((each > 0) == truth) for each in told]}
    found["AUC"] = [area(each, truth) for each in told]
    return {"peer": name, "seconds": seconds} | {
        score: float(np.mean(values)) for score, values in found.items()
    }


def area(scores, truth):
    """The area under the ROC curve: how often a record of the second class scores higher than one of the first."""
    from scipy.stats import rankdata

    ranks, many = rankdata(scores), int(truth.sum())
    return (ranks[truth].sum() - many * (many + 1) / 2) / (many * (len(truth) - many))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one of diffprivlib, opacus (its defaults) and dp-ebm")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    data = np.load(arguments.table)
    train, test = (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])
    for epsilon in arguments.epsilon:
        compare(data, train, test, epsilon, arguments)


def compare(data, train, test, epsilon, arguments):
    truth, delta, seeds = test[1] > 0.5, arguments.delta, arguments.seeds

    def opacus(settings):
        return lambda seed: opacus_scores(train, test, epsilon, delta, seed, settings)

    def report(row):
        print(json.dumps(row), flush=True)

    if arguments.only:
        one = {
            "diffprivlib": lambda seed: diffprivlib_scores(train, test, epsilon, seed),
            "opacus": opacus(DEFAULT),
            "dp-ebm": lambda seed: dp_ebm_scores(train, test, epsilon, delta, data["groups"].tolist(), seed),
        }
        report(measured(arguments.only, one[arguments.only], truth, seeds))
        return
    report(measured("diffprivlib", lambda seed: diffprivlib_scores(train, test, epsilon, seed), truth, seeds))
    report(measured("Opacus, defaults", opacus(DEFAULT), truth, seeds))
    points = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    tried = [(np.mean((opacus(point)(0) > 0) == truth), number, point) for number, point in enumerate(points)]
    best = max(tried)[2]
    report(measured("Opacus, best of the grid", opacus(best), truth, seeds) | {"settings": best})


if __name__ == "__main__":
    main()
