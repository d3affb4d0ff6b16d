"""The same statistics by peers, in an environment of their own: lines of JSON in, errors out.

Reads {"epsilon", "values", "lower", "upper", "edges", "levels", "repeats", "exact"} from standard input, a table in
each line; writes the squared errors of all releases of each statistic, for each peer that is installed. Called by
``table_statistics.py``.
"""

import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")


def errors(draw, exact, repeats):
    return [float(np.mean(np.square(np.asarray(draw()) - exact))) for _ in range(repeats)]


def by_diffprivlib(job, exact, repeats):
    from diffprivlib import tools

    x, bounds, epsilon = np.array(job["values"]), (job["lower"], job["upper"]), job["epsilon"]
    high, levels = x > np.mean(bounds), job["levels"]
    edges = job["edges"]
    return {
        "count": errors(lambda: tools.count_nonzero(high, epsilon=epsilon), exact["count"], repeats),
        "sum": errors(lambda: tools.sum(x, epsilon=epsilon, bounds=bounds), exact["sum"], repeats),
        "variance": errors(lambda: tools.var(x, epsilon=epsilon, bounds=bounds), exact["variance"], repeats),
        "histogram": errors(
            lambda: tools.histogram(x, epsilon=epsilon, bins=edges, range=bounds)[0],
            exact["histogram"],
            repeats,
        ),
        "median": errors(lambda: tools.median(x, epsilon=epsilon, bounds=bounds), exact["median"], repeats),
        "quantiles": errors(
            lambda: tools.quantile(x, levels, epsilon=epsilon, bounds=bounds), exact["quantiles"], repeats
        ),
    }


def by_opendp(job, exact, repeats):
    import opendp.prelude as dp

    dp.enable_features("contrib")
    x, epsilon, levels = list(map(float, job["values"])), job["epsilon"], job["levels"]
    lower, upper = float(job["lower"]), float(job["upper"])
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    found = {}

    def at_budget(make, values, distance=1):
        scale = dp.binary_search_param(make, d_in=distance, d_out=epsilon)
        release = make(scale)
        return lambda: release(values)

    middle = (lower + upper) / 2
    high = [value for value in x if value > middle]
    found["count"] = errors(
        at_budget(lambda s: space >> dp.t.then_count() >> dp.m.then_laplace(s), high), exact["count"], repeats
    )
    found["sum"] = errors(
        at_budget(
            lambda s: space >> dp.t.then_clamp((lower, upper)) >> dp.t.then_sum() >> dp.m.then_laplace(s), x
        ),
        exact["sum"],
        repeats,
    )
    sized = lambda s: (  # noqa: E731
        space
        >> dp.t.then_clamp((lower, upper))
        >> dp.t.then_resize(len(x), middle)
        >> dp.t.then_variance()
        >> dp.m.then_laplace(s)
    )
    found["variance"] = errors(at_budget(sized, x, 2), exact["variance"], repeats)
    candidates = np.linspace(lower, upper, 1001).tolist()

    def quantile(level, share):
        make = lambda s: (  # noqa: E731
            space
            >> dp.t.then_quantile_score_candidates(candidates, level)
            >> dp.m.then_noisy_max(dp.max_divergence(), s, negate=True)
        )
        scale = dp.binary_search_param(make, d_in=1, d_out=epsilon * share)
        release = make(scale)
        return lambda: candidates[release(x)]

    median, several = quantile(0.5, 1.0), [quantile(level, 1 / len(levels)) for level in levels]
    found["median"] = errors(median, exact["median"], repeats)
    found["quantiles"] = errors(lambda: [one() for one in several], exact["quantiles"], repeats)
    return found


def main():
    for line in sys.stdin:
        job = json.loads(line)
        answer = {}
        for name, ask in (("diffprivlib", by_diffprivlib), ("OpenDP", by_opendp)):
            try:
                answer[name] = ask(job, job["exact"], job["repeats"])
            except Exception as error:
                answer[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
