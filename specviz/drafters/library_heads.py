"""Generators that draft from the target's hidden states: its own multi-token-prediction layers, and DFlash models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator, MTPCandidateGenerator

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Assistant, Context
from specviz.drafters.library_sampler import SamplerProcessor, generation_config, reason, seeded
from specviz.errors import UserError
from specviz.models.alone import loading_alone
from specviz.models.kinds import is_dflash
from specviz.models.target import Target, shallow_copy


class HeadRun:
    """One run of such a generator. It is given the hidden rows that are new since its last draft."""

    def __init__(self, generator: Any, layers: Sequence[int], processor: SamplerProcessor) -> None:
        """layers: what the generator calls the parts of a hidden row."""
        self.generator, self.layers, self.processor = generator, layers, processor
        self.rows = 0  # hidden rows read
        self.drafted: list[int] = []  # the last draft, before it was shortened

    def carries_on(self, ctx: Context) -> bool:
        """Whether its caches can be brought up to these tokens."""
        return len(ctx.tokens) > self.rows + 1

    def draft(self, ctx: Context, gamma: int) -> Draft:
        assert ctx.hidden is not None
        new = ctx.hidden[self.rows :]
        if not len(new):  # after a prompt of one token
            return Draft.empty("Before the target's first pass there is no hidden state to draft from.")
        tokens = torch.tensor([ctx.tokens], dtype=torch.long, device=new.device)
        self.processor.begin()
        candidates, _ = self.generator.get_candidates(
            tokens,
            model_kwargs={
                "position_ids": torch.arange(len(ctx.tokens), device=new.device)[None],
                "attention_mask": None,
            },
            model_outputs=SimpleNamespace(hidden_states=self._by_layer(new)),
            is_first_iteration=False,
            n_last_matches=len(new) - 1,
        )
        self.rows += len(new)
        self.drafted = candidates[0, len(ctx.tokens) :].tolist()
        return self.processor.draft(self.drafted[:gamma])

    def _by_layer(self, rows: Tensor) -> dict[int, Tensor]:
        """[k, layers * D] -> one [1, k, D] for each layer."""
        return {layer: part[None] for layer, part in zip(self.layers, rows.chunk(len(self.layers), -1), strict=True)}


# --- multi-token prediction ---------------------------------------------------------------------------------------


class Mtp:
    """The target's own multi-token-prediction layers, read from its checkpoint; each drafts one token."""

    def __init__(self, target: Target, assistant: Assistant | None) -> None:
        """Raises UserError if the target has none, or if they can't be loaded."""
        if assistant is not None:
            raise UserError("The method mtp drafts with the target's own layers; leave the draft model out.")
        if not getattr(target.config, "num_mtp_layers", None):
            raise UserError(f"{target.name} has no multi-token-prediction layers; choose another drafter.")
        folder = target.model.config.name_or_path
        if not folder or not Path(folder).is_dir():
            raise UserError(
                f"The multi-token-prediction layers of {target.name} are read from its folder, and it was not loaded "
                "from one; choose another drafter."
            )
        self.devices = (target.device,)
        try:
            self._unused = _mtp_generator(target.model, self.devices)
        except Exception as error:  # a config or checkpoint can be wrong in as many ways as there are models
            raise UserError(
                f"The multi-token-prediction layers of {target.name} can't be loaded ({reason(error)}); choose "
                "another drafter."
            ) from error
        self.hidden_layers = (int(target.config.num_hidden_layers),)
        self.name, self.weights = f"{target.name} itself", target.weights

    def start(self, sampler: Sampler) -> MtpRun:
        # A generator of its own for each run, but all of a target share the weights.
        shared = {id(self._unused.mtp_model): self._unused.mtp_model}
        generator = copy.deepcopy(self._unused, shared)
        processor = SamplerProcessor(sampler)
        generator.do_sample, generator.logits_processor = sampler.temperature > 0, processor
        return MtpRun(generator, (-1,), processor)


_mtp_generators: WeakKeyDictionary[PreTrainedModel, MTPCandidateGenerator] = WeakKeyDictionary()  # by target


def _mtp_generator(model: PreTrainedModel, devices: Sequence[torch.device]) -> MTPCandidateGenerator:
    """A generator for this target that no run uses; the first call for a target reads the layers' weights."""
    if model not in _mtp_generators:
        with loading_alone:  # and whoever waited for it finds the generator made
            if model not in _mtp_generators:
                with seeded(0, devices):  # new layers are filled at random before they are loaded
                    _mtp_generators[model] = MTPCandidateGenerator(model, generation_config(Sampler()), {})
    return _mtp_generators[model]


def mtp_is_read(model: PreTrainedModel) -> bool:
    """Whether the layers of this target are in memory, where they stay as long as it does."""
    return model in _mtp_generators


class MtpRun(HeadRun):
    def carries_on(self, ctx: Context) -> bool:
        """The caches of all layers but the first hold rows made of draft tokens.

        Where fewer tokens came than there are layers, the generator makes the last rows anew, one for each layer.
        Where more came, it takes for granted that they are those drafted: after steps without a draft they are not.
        """
        depth = self.generator.num_mtp_layers
        came = ctx.tokens[self.rows + 1 :]
        if depth == 1 or not came:
            return bool(came)
        return self.rows >= depth if len(came) < depth else came[: depth - 1] == self.drafted[: depth - 1]


# --- DFlash -------------------------------------------------------------------------------------------------------


class DFlash:
    """A block-diffusion draft model: a pass over masks drafts a block, from several target layers."""

    def __init__(self, target: Target, assistant: Assistant | None) -> None:
        """Raises UserError without such a model, or if it was made for another target."""
        if assistant is None:
            raise UserError("The method dflash needs a DFlash draft model made for the target; name one.")
        config = assistant.model.config
        if not is_dflash(config.model_type):
            raise UserError(f"{assistant.name} is not a DFlash draft model; name one made for the target.")
        self.target, self.assistant = target, assistant
        self._check_fit(config.target_layer_ids)
        self.hidden_layers = tuple(layer + 1 for layer in config.target_layer_ids)  # hidden state 0 is the embeddings
        positions = getattr(config, "max_position_embeddings", None)
        self.limit = None if positions is None else int(positions) - int(config.block_size) + 1  # tokens before a block
        self.name, self.weights = assistant.name, assistant.weights
        self.devices = (target.device, assistant.model.device)

    def _check_fit(self, layers: Sequence[int]) -> None:
        target, model, name = self.target, self.assistant.model, self.assistant.name
        count, width = int(target.config.num_hidden_layers), int(target.config.hidden_size)
        if model.config.hidden_size != width:
            raise UserError(
                f"{name} reads states of width {model.config.hidden_size}; {target.name} has {width}, so choose the "
                "DFlash model made for it."
            )
        if not layers or not all(0 <= layer < count for layer in layers):
            raise UserError(
                f"{name} reads layers {', '.join(map(str, layers))}, counted from 0; {target.name} has {count} layers, "
                "so choose the DFlash model made for it."
            )
        rows = int(target.model.get_input_embeddings().num_embeddings)
        if not 0 <= model.config.mask_token_id < rows:
            raise UserError(
                f"{name} uses mask token {model.config.mask_token_id}; {target.name} has {rows} tokens, so choose the "
                "DFlash model made for it."
            )
        if model.config.block_size < 2:
            raise UserError(f"{name} drafts blocks of {model.config.block_size}; at least 2 are needed.")

    def start(self, sampler: Sampler) -> DFlashRun:
        processor = SamplerProcessor(sampler)
        model = self.target.model
        generator = DFlashTokenCandidateGenerator(
            self.assistant.model,
            # The generator takes the norm off embeddings that have one, for a moment: off these, not the target's.
            shallow_copy(model.get_input_embeddings()),
            _Head(model.get_output_embeddings(), self.target.device),
            generation_config(sampler),
            processor,
        )
        return DFlashRun(generator, self.hidden_layers, processor, self.name, self.limit)


class DFlashRun(HeadRun):
    def __init__(
        self, generator: Any, layers: Sequence[int], processor: SamplerProcessor, name: str, limit: int | None
    ) -> None:
        super().__init__(generator, layers, processor)
        self.name, self.limit = name, limit

    def draft(self, ctx: Context, gamma: int) -> Draft:
        if self.limit is not None and len(ctx.tokens) > self.limit:
            return Draft.empty(f"{self.name} drafts after at most {self.limit} tokens; beyond them nothing is drafted.")
        return super().draft(ctx, gamma)


class _Head:
    """The target's LM head with the one attribute that the generator asks for; a packed one has no weight."""

    def __init__(self, head: nn.Module, device: torch.device) -> None:
        self.head, self.weight = head, SimpleNamespace(device=device)

    def __call__(self, states: Tensor) -> Any:
        return self.head(states)
