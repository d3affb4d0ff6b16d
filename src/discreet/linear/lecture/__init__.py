"""The algorithms and theorems of the lecture: noisy descent, perturbation, sampling, and their excess risk."""
