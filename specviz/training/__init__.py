"""Making drafters for a target: data sampled from the target itself, and the training of each kind on it."""
