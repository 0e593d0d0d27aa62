"""Targets: where weights come from, the forward passes, the KV caches."""
