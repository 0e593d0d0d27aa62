"""Golden acceptance lengths: reference figures per draft length, what they imply, and how a measurement compares."""

from specviz.golden.conditions import Difference, Facts, differences
from specviz.golden.curves import (
    OVERALL,
    STATUSES,
    Curve,
    Golden,
    Measured,
    Verdict,
    compare,
    counts,
    from_first_position,
    implied_survival,
    worst,
)
from specviz.golden.files import parse, published, read, render, shipped, write

__all__ = [
    "OVERALL",
    "STATUSES",
    "Curve",
    "Difference",
    "Facts",
    "Golden",
    "Measured",
    "Verdict",
    "compare",
    "counts",
    "differences",
    "from_first_position",
    "implied_survival",
    "parse",
    "published",
    "read",
    "render",
    "shipped",
    "worst",
    "write",
]
