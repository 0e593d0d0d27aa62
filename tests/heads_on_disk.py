"""Tiny random heads, written in their layouts, for the tiny targets of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specviz.drafters.heads.adapter import ExitAdapter, write_adapter
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts import write_head
from specviz.drafters.heads.medusa import MedusaHeads, write_medusa
from specviz.drafters.heads.reduced import reduced_model, write_reduced
from specviz.models.target import Target

DRAFT_VOCABULARY = 100  # the first ids of the target's
ABOUT = {"kind": "test"}


def write(kind: str, folder: Path, model: PreTrainedModel, **about: Any) -> Path:
    """A head for the model, in `folder`. kind: the drafter's, "eagle3" for the later layout of eagle."""
    torch.manual_seed(5)
    config, said = model.config.get_text_config(), {**ABOUT, **about}
    width, vocabulary, layers = config.hidden_size, config.vocab_size, config.num_hidden_layers
    with torch.no_grad():
        if kind in ("eagle", "eagle3", "mtp"):
            write_head(filled(Head(head_config(kind, config))), folder, kind, said)
        elif kind == "medusa":
            write_medusa(filled(MedusaHeads(3, 1, width, vocabulary, DRAFT_VOCABULARY)), folder, said)
        elif kind == "early-exit":
            write_adapter(filled(ExitAdapter(layers - 1, width, 16, vocabulary, DRAFT_VOCABULARY)), folder, said)
        else:
            ids = torch.arange(DRAFT_VOCABULARY)
            write_reduced(reduced_model(Target(model, None, ""), 2, ids), ids, folder, said)
    return folder


def filled(head: Any) -> Any:
    """The same with random weights; norms stay as they are."""
    for parameter in head.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return head


def head_config(kind: str, target: PretrainedConfig) -> HeadConfig:
    layers = target.num_hidden_layers
    wide = kind == "eagle3"
    return HeadConfig(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_attention_heads,
        num_kv_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        rms_eps=1e-6,
        rope_theta=10_000.0,
        rope_scaling=None,
        max_position_embeddings=target.max_position_embeddings,
        hidden_layers=(1, 2, layers - 1) if wide else (layers,),
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=None if kind == "eagle" else DRAFT_VOCABULARY,
        combine={"eagle": "concat", "eagle3": "wide", "mtp": "mtp-reversed"}[kind],
        fc_bias=False,
        attention_bias=False,
        qk_norm=False,
        input_norm=kind != "eagle",
        feedback="normed" if kind == "mtp" else "output",
        norm_before_residual=False,
        norm_before_fc=False,
        final_norm=kind != "eagle",
        zero_first_embedding=False,
        block_type=None,
        block_config=None,
    )
