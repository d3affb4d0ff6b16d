"""Sums of which nobody sees the parts."""
