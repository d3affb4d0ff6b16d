"""Checks of models, losses and sums before and during training."""
