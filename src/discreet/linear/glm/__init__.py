"""The recipe without knobs: counts, scales, whitening, descent and recalibration, all out of one budget."""
