"""EAGLE: a small head that goes on from the target's own states.

Li et al., https://arxiv.org/abs/2401.15077 (EAGLE-1), 2406.16858 (EAGLE-2: its trees), 2503.01840 (EAGLE-3).
"""

from __future__ import annotations

from specviz.drafters.autoregressive import Autoregressive


class Eagle(Autoregressive):
    """EAGLE-1 to EAGLE-3; which one, the file says."""

    kind = "eagle"
