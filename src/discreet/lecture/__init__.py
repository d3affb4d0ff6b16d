"""The lectures' theorems and algorithms, for comparison and study. Product code never imports them."""

from discreet.lecture.amplification import poisson_amplification
from discreet.lecture.certified_descent import private_descent
from discreet.lecture.composition import (
    advanced_composition,
    basic_composition,
    figure_2_curve_not_a_guarantee,
    optimal_composition,
    strong_composition,
    strong_composition_of_noisy_sgd,
)
from discreet.lecture.erm import METHODS, private_minimiser
from discreet.lecture.gradient_sum import BoundedData, Clip, Declared
from discreet.lecture.lecture_noise import (
    claim_3_2_noise_not_a_guarantee,
    exact_noise,
    lecture_4_noise,
    noise_by_steps,
    true_epsilon,
)
from discreet.lecture.moments import moments_accountant
from discreet.lecture.rank_bound import Span, enough_steps, excess_by_dimension, lecture_steps, rank_bound

__all__ = [
    "METHODS",
    "BoundedData",
    "Clip",
    "Declared",
    "Span",
    "advanced_composition",
    "basic_composition",
    "claim_3_2_noise_not_a_guarantee",
    "enough_steps",
    "exact_noise",
    "excess_by_dimension",
    "figure_2_curve_not_a_guarantee",
    "lecture_4_noise",
    "lecture_steps",
    "moments_accountant",
    "noise_by_steps",
    "optimal_composition",
    "poisson_amplification",
    "private_descent",
    "private_minimiser",
    "rank_bound",
    "strong_composition",
    "strong_composition_of_noisy_sgd",
    "true_epsilon",
]
