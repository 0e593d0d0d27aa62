"""Multi-token prediction (MTP): a layer trained beside the target to predict one token further.

DeepSeek-V3, https://arxiv.org/abs/2412.19437.
"""

from __future__ import annotations

from specviz.drafters.autoregressive import Autoregressive


class Mtp(Autoregressive):
    """The prediction layer of DeepSeek, GLM, MiMo or Qwen, or one of ours; used again and again for further tokens."""

    kind = "mtp"
