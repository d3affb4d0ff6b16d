"""How good a model is, on records that are private too.

>>> import numpy as np
>>> from discreet.evaluation import evaluate, split
>>> rng = np.random.default_rng(0)
>>> x = rng.uniform(0, 1, (4000, 2))
>>> y = (x[:, 0] + 0.3 * rng.standard_normal(4000) > 0.5).astype(int)
>>> x_train, x_test, y_train, y_test = split(x, y, test=0.5)
>>> model = lambda rows: np.clip(rows[:, 0], 0, 1)  # any function, or anything with predict_proba
>>> found = evaluate(model, x_test, y_test, classes=(0, 1), epsilon=1.0)
>>> 0.6 < found["accuracy"].lower < found["accuracy"].value < found["accuracy"].upper < 0.95
True

One noisy histogram of (label, bin of the score) is released, and paid for; everything else follows from it.
"""

from discreet.evaluation.evaluate import evaluate
from discreet.evaluation.result import Evaluation
from discreet.evaluation.scoring import Score
from discreet.evaluation.splitting import Split, split

__all__ = ["Evaluation", "Score", "Split", "evaluate", "split"]
