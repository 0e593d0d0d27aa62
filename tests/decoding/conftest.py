"""Fixtures of the decoding tests: the default target."""

from real_model import default_target, default_target_bf16

__all__ = ["default_target", "default_target_bf16"]
