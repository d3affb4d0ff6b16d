"""Compiled loops for the CPU, where PyTorch has none of the kind; each has a twin in plain PyTorch.

The twin is the oracle of the tests, and what runs on other devices and types.
"""
