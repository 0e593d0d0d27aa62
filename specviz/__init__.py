"""specviz: watch speculative decoding work, and find out whether it pays."""

__version__ = "0.1.0"
