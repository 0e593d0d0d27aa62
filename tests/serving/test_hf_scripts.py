"""The scripts for transformers are run, on small stand-ins: the installed version has to take every option in them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import standins
import torch
from transformers.generation import candidate_generator

from specviz.presets import load_pairings
from specviz.serving import Deployment, Sampling, launches
from specviz.serving.plans import of_preset

PAIRINGS = load_pairings()
TOKENS = 16
EXIT = 2  # of the stand-in's layers


class Checkpoints:
    """Stand-ins on disk, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, str], Path] = {}

    def get(self, repo: str, role: str, chat: bool) -> Path:
        if (repo, role) not in self.made:
            where = self.folder / str(len(self.made))
            self.made[repo, role] = standins.save(repo, where, role=role, chat=chat)
        return self.made[repo, role]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("standins"))


def plan(pairing: str, drafter: str, temperature: float = 0.0) -> Deployment:
    chosen = PAIRINGS[pairing]
    preset = next(each for each in chosen.drafters if each.title == drafter)
    sampling = Sampling(temperature=temperature, max_new_tokens=TOKENS)
    return replace(of_preset(chosen, preset, preset.defaults.get("gamma", 4), {}), sampling=sampling)


def output(asked: Deployment, checkpoints: Checkpoints) -> list[int]:
    """The new ids that the script makes, with stand-ins in place of its models."""
    (launch,) = launches(asked, ["transformers"])
    assert launch.command is not None
    code = re.sub(r"assistant_early_exit=\d+", f"assistant_early_exit={EXIT}", launch.command)
    places = [(asked.target, "target"), *([(asked.drafter, "drafter")] if asked.drafter else [])]
    for model, role in places:
        folder = checkpoints.get(model.hub.repo, role, asked.chat)
        code = code.replace(f'"{model.hub.repo}"', repr(str(folder)))
    names: dict[str, Any] = {}
    exec(code, names)
    new: list[int] = names["output"][0, names["inputs"]["input_ids"].shape[1] :].tolist()
    return new


DRAFTERS = [
    ("smollm2-135m", "N-gram lookup"),
    ("smollm2-135m", "The target itself"),
    ("smollm2-135m", "Early exit"),
    ("smollm2-360m", "SmolLM2 135M"),
    ("gpt2", "DistilGPT2"),  # no chat
    ("gemma-3-4b", "SmolLM2 135M, another tokenizer"),
    ("mellum2.1-12b-mtp", "Built-in multi-token prediction"),
]


@pytest.mark.parametrize(("pairing", "drafter"), [*DRAFTERS, ("qwen2.5-coder-7b", "Qwen2.5 Coder 0.5B")])
def test_greedy_scripts_write_what_plain_decoding_writes(pairing, drafter, checkpoints):
    plain = output(plan(pairing, "No drafter"), checkpoints)
    assert len(plain) == TOKENS
    assert output(plan(pairing, drafter), checkpoints) == plain


@pytest.mark.parametrize(("pairing", "drafter"), DRAFTERS)
def test_sampling_scripts_run(pairing, drafter, checkpoints):
    assert 0 < len(output(plan(pairing, drafter, temperature=0.8), checkpoints)) <= TOKENS


@pytest.mark.parametrize(("pairing", "drafter"), DRAFTERS[1:4])
def test_drafts_are_gamma_tokens_long(pairing, drafter, checkpoints, monkeypatch):
    """Arguments of `generate` would not reach the drafting model, which drafts 20 tokens by default."""
    lengths: list[int] = []
    kind = candidate_generator.AssistedCandidateGenerator
    get_candidates = kind.get_candidates

    def noted(self: Any, input_ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
        found = get_candidates(self, input_ids, *rest, **more)
        lengths.append(found[0].shape[1] - input_ids.shape[1])
        return found

    monkeypatch.setattr(kind, "get_candidates", noted)
    asked = plan(pairing, drafter)
    output(asked, checkpoints)
    assert lengths[0] == asked.gamma  # the first draft is far from the end
    assert max(lengths) == asked.gamma


def test_recurrent_targets_are_refused_as_transformers_refuses_them(checkpoints):
    (launch,) = launches(plan("qwen3.5-0.8b", "N-gram lookup"), ["transformers"])
    assert launch.command is None and "recurrent" in launch.unsupported
    forced = plan("smollm2-135m", "N-gram lookup")
    with pytest.raises(ValueError, match="stateful"):
        output(replace(forced, target=replace(PAIRINGS["qwen3.5-0.8b"].target, hub=_hidden(checkpoints))), checkpoints)


def _hidden(checkpoints: Checkpoints) -> Any:
    """The recurrent target under an id of which nothing is known."""
    hub = PAIRINGS["qwen3.5-0.8b"].target.hub
    checkpoints.made["someone/unknown", "target"] = checkpoints.get(hub.repo, "target", True)
    return replace(hub, repo="someone/unknown")


def test_padded_vocabularies_are_refused_where_transformers_fails(checkpoints, monkeypatch):
    """Once this no longer fails, the refusal can go."""
    asked = plan("qwen2.5-coder-7b", "Qwen2.5 Coder 0.5B", temperature=0.8)
    (launch,) = launches(asked, ["transformers"])
    assert launch.command is None and "padding" in launch.unsupported
    universal = replace(asked, kind="library", settings={"method": "universal"})
    with pytest.raises(AttributeError, match="assistant_overlap_token_ids"):
        output(universal, checkpoints)
