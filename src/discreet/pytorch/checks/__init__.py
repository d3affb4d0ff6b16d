"""What is tried on a model and its losses before it is trained."""
