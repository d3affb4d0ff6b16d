"""What a release costs: certified privacy curves, and the classical theorems beside them."""
