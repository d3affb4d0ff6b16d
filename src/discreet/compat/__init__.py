"""Discreet's accountant in the shapes of other libraries. Nothing of theirs is imported."""
