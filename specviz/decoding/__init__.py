"""Draft trees, the sampler, the acceptance rule and the decode loop."""
