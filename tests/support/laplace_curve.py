"""The exact privacy curve of one release with Laplace noise, in closed form; ``scale`` is in l1 sensitivities."""

import math


def laplace_delta(epsilon, scale):
    return max(0.0, -math.expm1(0.5 * (epsilon - 1 / scale)))


def laplace_power(false_alarms, scale):
    """The hit rate of the best membership test with this false-alarm rate."""
    shrink = math.exp(-1 / scale)
    if false_alarms <= 0.5 * shrink:
        return false_alarms / shrink
    return 1 - (shrink / (4 * false_alarms) if false_alarms < 0.5 else shrink * (1 - false_alarms))
