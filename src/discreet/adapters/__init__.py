"""Where rooms meet: fits that are audited, linear models that several parties train."""
