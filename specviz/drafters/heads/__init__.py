"""Trained heads: what they compute, how their files are read, and the vocabulary that they draft in."""
