"""Fixtures of the decoding tests: the default target."""

from real_model import all_threads, default_target, default_target_bf16

__all__ = ["all_threads", "default_target", "default_target_bf16"]
