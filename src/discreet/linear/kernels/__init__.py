"""Clipped gradients of linear models, in one pass over the rows."""
