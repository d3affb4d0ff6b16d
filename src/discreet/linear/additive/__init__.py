"""Private additive models: a curve for every column, on the engine of the linear ones."""
