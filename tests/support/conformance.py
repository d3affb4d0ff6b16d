"""Does a sample look like standard normal noise? Used on our draws, and on broken twins that must be caught."""

import numpy as np
from scipy import stats

THRESHOLD = 1e-8
"""An honest sample of independent draws falls below it with probability at most 1e-8 times the number of tests,
about 1e-7. Our samples are seeded, so this is the chance of an unlucky seed, not of a flaky test."""

# The variances of the second and fourth sample moment about their normal values 1 and 3 are 2/n and 96/n.


def suspicion(sample, tails=(3.0, 3.5, 4.0, 4.5, 5.0)):
    """The smallest p-value of: mean, variance, fourth moment, autocorrelations, Kolmogorov–Smirnov, tails."""
    z = np.ravel(sample).astype(np.float64)
    n = z.size
    scores = [z.mean() * n**0.5, (np.mean(z**2) - 1) * (n / 2) ** 0.5, (np.mean(z**4) - 3) * (n / 96) ** 0.5]
    scores += [np.mean(z[:-lag] * z[lag:]) * n**0.5 for lag in (1, 2, n // 2)]
    p_values = [2 * stats.norm.sf(abs(score)) for score in scores]
    p_values.append(stats.kstest(z[:200_000], "norm", method="asymp").pvalue)
    for tail in tails:
        count, expected = np.sum(np.abs(z) > tail), 2 * n * stats.norm.sf(tail)
        p_values.append(2 * min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected)))
    return min(p_values)
