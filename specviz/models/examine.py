"""What a model is and whether it can work here, from its small files alone, before its weights are downloaded."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import constants, metadata_load
from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES
from transformers.quantizers.auto import AutoHfQuantizer

from specviz.errors import UserError
from specviz.models import hub
from specviz.models.checkpoint import (
    CONFIG,
    check_names,
    check_sound,
    check_tokenizer,
    has_tokenizer,
    is_complete,
    read_json,
    small_files,
    weight_files,
)
from specviz.models.config import config_of
from specviz.models.fetch import Progress, first_line
from specviz.models.hub import Repository
from specviz.models.kinds import is_dflash
from specviz.models.load import UNPACKED
from specviz.presets import ModelSource
from specviz.refusals import brief, refused_as

GENERATION = "generation_config.json"
STOP = "eos_token_id"


@dataclass(frozen=True, slots=True)
class Examined:
    """A model that can work here, as far as its small files tell.

    folder: where they lie; the weights lie there too once they are here. tokenizer: None only for a DFlash model that
    comes without one. weights: the files that transformers loads, with their sizes in bytes. repository: where they
    come from; None for a folder. quantisation: method of a quantised checkpoint. compact: whether its weights stay that
    small in memory.
    """

    source: ModelSource
    folder: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase | None
    weights: dict[str, int]
    repository: Repository | None
    quantisation: str | None
    compact: bool
    licence: str

    @property
    def weight_bytes(self) -> int:
        """Size of all weight files."""
        return sum(self.weights.values())

    @property
    def missing_bytes(self) -> int:
        """What is still to be downloaded."""
        return 0 if self.repository is None else self.repository.missing(self.weights)


def examine_folder(source: ModelSource, folder: Path) -> Examined:
    """Examine the model in a folder. Raises UserError, one sentence, for everything that stands against it."""
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"The folder {folder} {state}, so give a folder that holds a model.")
    files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return _examine(source, str(folder), folder, files, None)


def examine_hub(source: ModelSource, *, offline: bool, progress: Progress) -> Examined:
    """Examine the model in the Hub's cache, or on the Hub if it isn't all there; its small files are fetched.

    Raises UserError, one sentence, for everything that stands against it.
    """
    assert source.hub is not None
    found = hub.cached(source.hub)
    if found is None or not is_complete(found.files, found.folder):
        if offline or constants.is_offline_mode():
            raise UserError(
                f"{source.hub.repo} is not complete in the Hub's cache {constants.HF_HUB_CACHE} and offline mode "
                "forbids fetching it, so fetch it once with a connection or give a folder that holds it."
            )
        found = hub.look_up(source.hub, progress)
        check_names(found.repo, found.files)
        hub.download(found, small_files(found.files), progress)
    return _examine(source, found.repo, found.folder, found.files, found)


def _examine(
    source: ModelSource, what: str, folder: Path, files: Mapping[str, int], repository: Repository | None
) -> Examined:
    check_names(what, files)
    with refused_as(f"{what} can't be used", "so choose another model"):
        weights = weight_files(what, files, folder)
        config = _config(what, folder)
        check_tokenizer(what, files, folder)
        _check_stop_tokens(what, config, folder)
        quantisation, compact = _quantisation(what, config)
        check_sound(what, folder, [name for name in weights if (folder / name).exists()])
        return Examined(
            source=source,
            folder=folder,
            config=config,
            tokenizer=_tokenizer(what, folder) if has_tokenizer(files) else None,
            weights=weights,
            repository=repository,
            quantisation=quantisation,
            compact=compact,
            licence=_licence(folder) if source.licence == "unknown" else source.licence,
        )


def _config(what: str, folder: Path) -> PreTrainedConfig:
    """The configuration, if it is that of a model that can work here."""
    _check_class(what, read_json(what, folder / CONFIG))
    with refused_as(f"{CONFIG} of {what} can't be used", "so choose another model"):
        return config_of(what, folder)


def _check_class(what: str, raw: Mapping[str, Any]) -> None:
    """Raise UserError unless it is a language model, or a DFlash model, that transformers itself can build."""
    kind, code = str(raw.get("model_type")), raw.get("auto_map") or {}
    if not isinstance(code, dict):
        raise _needs_code(what, str(code))
    if kind not in CONFIG_MAPPING and not code:
        version = f"transformers {transformers.__version__}"
        raise UserError(f"{what} is of a kind ({brief(kind)}) that {version} does not know, so choose another model.")
    loader, known = "AutoModelForCausalLM", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if is_dflash(kind):
        loader, known = "AutoModel", MODEL_MAPPING_NAMES
    native = known.get(kind)
    # Files may still name the code that a model had before transformers took it over, under the same names.
    taken_over = {loader: native}
    if kind in CONFIG_MAPPING:
        taken_over["AutoConfig"] = CONFIG_MAPPING[kind].__name__
    for entry, name in taken_over.items():
        if entry in code and str(code[entry]).rpartition(".")[2].lower() != str(name).lower():
            raise _needs_code(what, code[entry])
    classes = [str(name) for name in raw.get("architectures") or [native or kind]]
    if not raw.get("is_encoder_decoder") and native and any(_is_loaded_as(name, native) for name in classes):
        return
    if raw.get("architectures") and not any(hasattr(transformers, name) for name in classes):
        raise _needs_code(what, classes[0])
    raise UserError(f"{what} is no decoder-only language model ({brief(', '.join(classes))}), so choose one that is.")


def _needs_code(what: str, name: str) -> UserError:
    return UserError(f"{what} needs code of its own ({brief(name)}), which is never run here, so choose another model.")


def _is_loaded_as(architecture: str, native: str) -> bool:
    """Whether a checkpoint of this class gives all weights of transformers' model `native`.

    One that also sees or hears has the language model as a part.
    """
    return architecture.lower() == native.lower() or architecture.endswith("ForConditionalGeneration")


def _check_stop_tokens(what: str, config: PreTrainedConfig, folder: Path) -> None:
    """Raise UserError if the model's end-of-text tokens are no token ids."""
    generation = read_json(what, folder / GENERATION) if (folder / GENERATION).exists() else {}
    for named in (generation.get(STOP), getattr(config.get_text_config(decoder=True), STOP, None)):
        for token in named if isinstance(named, list) else [named]:
            if token is not None and not isinstance(token, int):
                raise UserError(
                    f"{what} names {brief(token)} as its {STOP}, which is no number, so correct that entry."
                )


def _quantisation(what: str, config: PreTrainedConfig) -> tuple[str | None, bool]:
    """A quantised checkpoint's method, and whether its weights stay quantised in memory; (None, False) for others."""
    stored: dict[str, Any] | None = getattr(config, "quantization_config", None)
    if stored is None:
        return None, False
    method = str(stored.get("quant_method"))
    unpacked = {"dequantize": True} if method in UNPACKED else {}
    problem = f"{what} is quantised ({brief(method)}) and can't be used here"
    try:
        quantizer = AutoHfQuantizer.from_config({**copy.deepcopy(stored), **unpacked}, pre_quantized=True)
        quantizer.validate_environment(device_map=None)
    except ImportError as error:
        remedy = "so install that library or choose a version that is not quantised"
        raise UserError(f"{problem} ({first_line(error)}), {remedy}.") from error
    except Exception as error:
        raise UserError(f"{problem} ({first_line(error)}), so choose a version that is not quantised.") from error
    return method, method not in UNPACKED


def _tokenizer(what: str, folder: Path) -> PreTrainedTokenizerBase:
    try:
        # transformers would ask for tiktoken, which can't read these files either.
        if list(folder.glob("*.model")) and not (folder / "tokenizer.json").exists() and not find_spec("sentencepiece"):
            raise ImportError("sentencepiece")
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise UserError(
            f"The tokenizer of {what} needs a library that is missing here ({first_line(error)}), so install it and "
            "try again."
        ) from error
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"The tokenizer of {what} needs code of its own, which is never run here, so choose another model."
            ) from error
        raise UserError(
            f"The tokenizer of {what} can't be used ({first_line(error)}), so check that its files are complete."
        ) from error


def _licence(folder: Path) -> str:
    """What the model's card says, if there is one."""
    try:
        card = metadata_load(folder / "README.md") or {}
    except Exception:  # written by hand, so it may be anything
        card = {}
    licence = card.get("license_name") or card.get("license") or "unknown"
    return ", ".join(map(str, licence)) if isinstance(licence, list) else str(licence)
