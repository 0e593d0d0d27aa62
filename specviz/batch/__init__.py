"""Batches: what passes over several sequences at once cost on this device, and what that leaves of the speed-up."""
