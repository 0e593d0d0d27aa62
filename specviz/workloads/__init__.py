"""Workloads: suites of prompts, and what drafters bring on them."""
