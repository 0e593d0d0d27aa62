"""What stands against a model is said in one sentence, and before its weights are downloaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import fake_hub
import huggingface_hub.constants
import pytest
from drafters.assistants import dflash_model
from fake_hub import checkpoint, with_config
from fakes import byte_tokenizer

from specviz.drafters.pair import check_pair
from specviz.errors import UserError
from specviz.models import checkpoint as checkpoints
from specviz.models.sources import examine, own_model

FILES = checkpoint()
SMALL = {name: content for name, content in FILES.items() if not name.endswith(".safetensors")}
SHARDED = checkpoint(shard="60kB")
PARTS = sorted(name for name in SHARDED if name.endswith(".safetensors"))
PARSED = json.loads(FILES["config.json"])


@pytest.fixture
def fake(monkeypatch, tmp_path):
    with fake_hub.running() as running:
        fake_hub.use(monkeypatch, running.endpoint, tmp_path / "home")
        yield running


def refusal(text: str, **options) -> str:
    with pytest.raises(UserError) as caught:
        examine(own_model(text), **options)
    return one_sentence(caught.value)


def one_sentence(error: UserError) -> str:
    text = str(error)
    assert "\n" not in text and ". " not in text and text.endswith(".") and "so " in text, text
    return text


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


def dflash() -> dict[str, bytes]:
    """The files of a DFlash model, which comes without a tokenizer."""
    with TemporaryDirectory() as folder:
        dflash_model().save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


SIZES = {"dtype_bytes": 4, "context_tokens": 100, "gamma": 4}


class TestClearRefusals:
    """Wrong id, gated, pickles only, another tokenizer, too large: one sentence each, and no weights downloaded."""

    @pytest.fixture(autouse=True)
    def no_weights(self, fake):
        yield
        assert fake.served(".safetensors") == fake.served(".bin") == []

    def test_a_wrong_id(self, fake):
        assert refusal("someone/misspelt") == (
            "The Hub has no public model someone/misspelt, so check the spelling or, if it is private, log in with "
            "`hf auth login` or HF_TOKEN."
        )

    def test_a_gated_model(self, fake):
        fake.add("someone/gated", FILES, gated=True)
        assert refusal("someone/gated") == (
            f"someone/gated is gated, so open {fake.endpoint}/someone/gated and accept its terms, log in with "
            "`hf auth login` or HF_TOKEN, and try again."
        )

    def test_a_repository_of_pickles(self, fake):
        fake.add("someone/pickled", {**SMALL, "pytorch_model.bin": b"\x80"})
        assert refusal("someone/pickled") == (
            "someone/pickled has its weights only as pickles (pytorch_model.bin), which can run code when they are "
            "read, so give a version with safetensors."
        )

    def test_another_tokenizer(self, fake):
        target, drafter = self.pair(fake, with_another_tokenizer())
        with pytest.raises(UserError) as caught:
            check_pair(target, drafter, "draft-model", available=10**9, **SIZES)
        assert one_sentence(caught.value) == (
            "someone/drafter has another tokenizer than someone/target, so choose a draft model of the target's "
            "family, or the drafter `library` with the method `universal`, which translates."
        )

    def test_too_large(self, fake):
        target, drafter = self.pair(fake, FILES)
        with pytest.raises(UserError) as caught:
            check_pair(target, drafter, "draft-model", available=400_000, **SIZES)
        assert "needs about 1 MB of memory (weights 0 MB + 0 MB for the drafter" in one_sentence(caught.value)

    def pair(self, fake, drafter):
        fake.add("someone/target", FILES)
        fake.add("someone/drafter", drafter)
        return examine(own_model("someone/target")), examine(own_model("someone/drafter"))


def with_another_tokenizer() -> dict[str, bytes]:
    """The same model, whose tokenizer swaps two letters."""
    stored = json.loads(FILES["tokenizer.json"])
    vocabulary = stored["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    return {**FILES, "tokenizer.json": json.dumps(stored).encode()}


# --- what passes


def test_a_model_on_the_hub_is_known_from_its_small_files(fake):
    card = b"---\nlicense: apache-2.0\n---\n# Tiny"
    extra = {"pytorch_model.bin": b"\x80", "consolidated.safetensors": b"other", "model.fp16.safetensors": b"half"}
    fake.add("someone/tiny", {**FILES, **extra, "README.md": card, "onnx/model.safetensors": b"too deep"})
    found = examine(own_model("someone/tiny"))
    size = len(FILES["model.safetensors"])
    assert found.weights == {"model.safetensors": size} and found.weight_bytes == found.missing_bytes == size
    assert found.config.model_type == "llama" and found.licence == "apache-2.0"
    assert found.tokenizer.get_vocab() == byte_tokenizer().get_vocab()
    assert (found.quantisation, found.compact) == (None, False)
    assert {path.name for path in found.folder.iterdir()} == {*SMALL, "README.md"}


def test_a_sharded_model_in_a_folder(tmp_path):
    folder = fake_hub.write(tmp_path / "Tiny", {**SHARDED, "consolidated.safetensors": b"other"})
    found = examine(own_model(str(folder)), offline=True)
    assert len(PARTS) > 1 and found.weights == {name: len(SHARDED[name]) for name in PARTS}
    assert found.missing_bytes == 0 and found.repository is None and found.folder == folder


def test_what_a_preset_says_of_the_licence_counts(tmp_path):
    folder = fake_hub.write(tmp_path / "Tiny", {**FILES, "README.md": b"---\nlicense: mit\n---\n"})
    assert examine(replace(own_model(str(folder)), licence="Apache-2.0")).licence == "Apache-2.0"


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (b"---\nlicense: other\nlicense_name: tiny-licence\n---\n", "tiny-licence"),
        (b"---\nlicense: [mit, gpl]\n---\n", "mit, gpl"),
        (b"# no facts", "unknown"),
        (b"---\nlicense: [\n---\n", "unknown"),
        (b"\xff\xfe", "unknown"),
    ],
)
def test_licences_of_cards(tmp_path, card, licence):
    folder = fake_hub.write(tmp_path / "Tiny", {**FILES, "README.md": card})
    assert examine(own_model(str(folder))).licence == licence


def test_code_that_transformers_has_taken_over_is_not_needed(tmp_path):
    names = {"AutoConfig": "configuration_llama.LlamaConfig", "AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}
    folder = fake_hub.write(
        tmp_path / "Tiny", {**with_config(FILES, auto_map=names), "modeling_llama.py": b"raise SystemExit"}
    )
    assert examine(own_model(str(folder))).config.model_type == "llama"


def test_weights_that_are_unpacked_as_they_are_read_are_not_compact(tmp_path):
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = examine(own_model(str(fake_hub.write(tmp_path / "Tiny", with_config(FILES, quantization_config=stored)))))
    assert (found.quantisation, found.compact) == ("fp8", False)


def test_weights_that_stay_quantised_are_compact(tmp_path, monkeypatch):
    stored = {"quant_method": "bitnet"}
    found = examine(own_model(str(fake_hub.write(tmp_path / "Tiny", with_config(FILES, quantization_config=stored)))))
    assert (found.quantisation, found.compact) == ("bitnet", True)


def test_a_dflash_model_needs_no_tokenizer(fake):
    files = dflash()
    fake.add("someone/blocks", files)
    found = examine(own_model("someone/blocks"))
    assert found.config.model_type == "muse_glimmer_assistant" and found.tokenizer is None
    assert found.weights == {"model.safetensors": len(files["model.safetensors"])} and found.missing_bytes > 0
    assert fake.served(".safetensors") == []


def test_a_dflash_model_may_bring_a_tokenizer(tmp_path):
    tokenizer = {name: content for name, content in FILES.items() if name.startswith("tokenizer")}
    folder = fake_hub.write(tmp_path / "Blocks", {**dflash(), **tokenizer})
    assert examine(own_model(str(folder))).tokenizer.get_vocab() == byte_tokenizer().get_vocab()


def test_a_dflash_model_in_the_cache_is_complete_without_a_tokenizer(monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path)
    folder = fake_hub.cache(tmp_path, "someone/blocks", dflash())
    assert examine(own_model("someone/blocks"), offline=True).folder == folder


# --- what does not


CUSTOM = {"auto_map": {"AutoModelForCausalLM": "modeling_new.NewForCausalLM"}}
NEW_TOKENIZER = json.dumps(
    {"tokenizer_class": "NewTokenizer", "auto_map": {"AutoTokenizer": ["new.NewTokenizer", None]}}
)
BLOCKS = {  # as DFlash models are published whose classes transformers does not have
    "model_type": "qwen3",
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 2]},
}
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
INDEX = "model.safetensors.index.json"
REFUSED = {
    "no config": (without(FILES, "config.json"), "has no config.json"),
    "nothing": ({}, "has no config.json"),
    "a config that is no JSON": ({**FILES, "config.json": b"{"}, "config.json of .* can't be read"),
    "a config that is a list": ({**FILES, "config.json": b"[]"}, "config.json of .* holds no mapping"),
    "a config of wrong types": (with_config(FILES, hidden_size="many"), "config.json of .* can't be used"),
    "an adapter": (ADAPTER, "only an adapter"),
    "an adapter beside a config": ({**SMALL, **ADAPTER}, "only an adapter"),
    "GGUF": ({"tiny.Q4.gguf": b"GGUF", "README.md": b""}, "weights only as GGUF"),
    "GGUF beside a config": ({**SMALL, "tiny.gguf": b"GGUF"}, "weights only as GGUF"),
    "pickles": ({**SMALL, "model.pt": b""}, r"only as pickles \(model.pt\)"),
    "other formats": ({**SMALL, "flax_model.msgpack": b""}, "no safetensors weights"),
    "another layout": ({**SMALL, "consolidated.safetensors": b""}, "neither model.safetensors nor"),
    "no tokenizer": (without(FILES, "tokenizer.json", "tokenizer_config.json"), "has no tokenizer"),
    "a tokenizer that is none": ({**FILES, "tokenizer.json": b"{}"}, "The tokenizer of .* can't be used"),
    "a tokenizer that needs code": (
        {**without(FILES, "tokenizer.json"), "vocab.txt": b"a", "tokenizer_config.json": NEW_TOKENIZER.encode()},
        "The tokenizer of .* needs code of its own",
    ),
    "code for an unknown kind": (with_config(FILES, model_type="new", **CUSTOM), r"code of its own \(modeling_new.New"),
    "code for a known kind": (with_config(FILES, **CUSTOM), r"code of its own \(modeling_new.NewForCausalLM\)"),
    "code for another class than the language model": (
        with_config(
            without(FILES, "tokenizer.json", "tokenizer_config.json"),
            **BLOCKS,
            auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        ),
        r"needs code of its own \(DFlashDraftModel\), which is never run here, so choose another model",
    ),
    "a class that transformers does not have": (
        with_config(FILES, **BLOCKS, target_layer_ids=[1, 2], mask_token_id=9),
        r"needs code of its own \(DFlashDraftModel\)",
    ),
    "code for a DFlash model": (
        with_config(dflash(), auto_map={"AutoModel": "modeling_new.NewModel"}),
        r"code of its own \(modeling_new.NewModel\)",
    ),
    "a DFlash model of wrong types": (with_config(dflash(), block_size="large"), "config.json of .* can't be used"),
    "an unknown kind": (with_config(FILES, model_type="new"), r"of a kind \(new\) that transformers 5"),
    "no kind": (with_config(FILES, model_type=None), r"of a kind \(None\)"),
    "encoder and decoder": (
        with_config(FILES, model_type="t5", architectures=["T5ForConditionalGeneration"]),
        "decoder-only",
    ),
    "encoder and decoder with a decoder alone": (
        with_config(FILES, model_type="bart", architectures=["BartForCausalLM"], is_encoder_decoder=True),
        "decoder-only",
    ),
    "an encoder": (
        with_config(FILES, model_type="bert", architectures=["BertForMaskedLM"]),
        r"decoder-only .*\(BertForM",
    ),
    "nothing said of its class": (with_config(FILES, model_type="vit", architectures=None), r"model \(vit\)"),
    "vision": (with_config(FILES, model_type="vit", architectures=["ViTModel"]), "decoder-only"),
    "no head": (with_config(FILES, architectures=["LlamaModel"]), r"decoder-only language model \(LlamaModel\)"),
    "another head": (with_config(FILES, architectures=["LlamaForSequenceClassification"]), "decoder-only"),
    "no library for its weights": (
        with_config(FILES, quantization_config={"quant_method": "awq", "bits": 4}),
        r"quantised \(awq\) and can't be used here \(.*gptqmodel.*, so install that library",
    ),
    "unknown quantisation": (
        with_config(FILES, quantization_config={"quant_method": "new"}),
        r"quantised \(new\) and can't be used here",
    ),
    "code named by a list": (with_config(FILES, auto_map=["AutoConfig"]), r"code of its own \(\['AutoConfig'\]\)"),
    "code named by a word": (with_config(FILES, auto_map="AutoModel"), r"code of its own \(AutoModel\)"),
    "a class that is a number": (with_config(FILES, architectures=5), "can't be used"),
    "a config nested too deep": (
        {**FILES, "config.json": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"},
        "config.json of .* can't be read",
    ),
    "quantisation that is a word": (with_config(FILES, quantization_config="fp8"), "can't be used"),
    "an end that is no token id": (with_config(FILES, eos_token_id="abc"), "config.json of .* can't be used"),
    "an end that is no token id, beside the config": (
        {**FILES, "generation_config.json": b'{"eos_token_id": [2, "abc"]}'},
        "names abc as its eos_token_id, which is no number, so",
    ),
    "too many layers": (with_config(FILES, num_hidden_layers=1001), r"more than 1000 layers \(num_hidden_layers\)"),
    "too many layers by another name": (with_config(FILES, n_layer=1e30), r"more than 1000 layers \(n_layer\)"),
    "too many layers of a part": (
        with_config(FILES, vision_config={"num_hidden_layers": 10**12}),
        r"more than 1000 layers \(num_hidden_layers\)",
    ),
    **{
        f"too many experts ({name})": (with_config(FILES, **{name: 4097}), rf"more than 4096 experts \({name}\)")
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    },
    **{
        f"a negative size ({name})": (with_config(FILES, **{name: -32}), f"names -32 as {name}, so choose")
        for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    },
    "a part is missing": (without(SHARDED, PARTS[1]), rf"lacks 1 of the weight files .* \(first '{PARTS[1]}'\)"),
    "parts are elsewhere": (
        {**SMALL, INDEX: json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()},
        "lacks 1 of the weight files",
    ),
    "an index of nothing": ({**SMALL, INDEX: b'{"weight_map": {}}'}, "names no weight files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_is_refused(tmp_path, case):
    files, reason = REFUSED[case]
    folder = fake_hub.write(tmp_path / "Tiny", files)
    with pytest.raises(UserError, match=f"{folder}.* {reason}|{reason}.*{folder}|{reason}") as caught:
        examine(own_model(str(folder)))
    assert str(folder) in one_sentence(caught.value)


@pytest.mark.parametrize("case", ["an adapter", "GGUF", "no config", "other formats"])
def test_a_repository_is_refused_by_its_list_of_files(fake, case):
    files, reason = REFUSED[case]
    fake.add("someone/tiny", files)
    assert reason in refusal("someone/tiny")
    assert [path for path in fake.served() if "/resolve/" in path] == []


def test_a_repository_without_a_tokenizer_is_refused_by_its_small_files(fake):
    fake.add("someone/tiny", without(FILES, "tokenizer.json", "tokenizer_config.json"))
    assert "someone/tiny has no tokenizer, so" in refusal("someone/tiny")
    assert fake.served("/config.json") != [] and fake.served(".safetensors") == []


def test_no_code_of_a_repository_is_fetched(fake):
    fake.add("someone/tiny", {**with_config(FILES, **CUSTOM), "modeling_new.py": b"raise SystemExit('executed')"})
    assert "code of its own" in refusal("someone/tiny")
    assert fake.served(".py") == fake.served(".safetensors") == []


def test_folders_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    assert f"The folder {tmp_path / 'file'} is a file, so" in refusal(str(tmp_path / "file"))
    assert f"The folder {tmp_path / 'gone'} does not exist, so" in refusal(str(tmp_path / "gone"))


@pytest.mark.parametrize("cut", [1, 1000, len(FILES["model.safetensors"])])
def test_weights_that_are_cut_off(tmp_path, cut):
    folder = fake_hub.write(tmp_path / "Tiny", {**FILES, "model.safetensors": FILES["model.safetensors"][:-cut]})
    text = refusal(str(folder))
    assert (
        "model.safetensors of" in text and "damaged or incomplete" in text and str(folder / "model.safetensors") in text
    )


def test_a_library_that_a_tokenizer_needs(tmp_path):
    files = {**without(FILES, "tokenizer.json"), "tokenizer.model": b"", "tokenizer_config.json": b"{}"}
    assert "needs a library that is missing here (sentencepiece)" in refusal(
        str(fake_hub.write(tmp_path / "Tiny", files))
    )


def test_descriptions_that_are_too_large_are_not_fetched(fake, monkeypatch):
    monkeypatch.setattr(checkpoints, "SMALL", 1000)
    fake.add("someone/tiny", {**FILES, "vocab.json": bytes(1001), "merges.txt": bytes(1000)})
    assert "can't be used" in refusal("someone/tiny")  # tokenizer.json is larger
    assert fake.served("vocab.json") == fake.served("tokenizer.json") == [] and len(fake.served("merges.txt")) == 1


# --- what the cache holds


def test_a_complete_cache_needs_no_network(monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path)
    folder = fake_hub.cache(tmp_path, "someone/tiny", FILES)
    assert examine(own_model("someone/tiny")).folder == folder
    (folder / "model.safetensors").unlink()
    assert (
        f"someone/tiny is not complete in the Hub's cache {tmp_path / 'hub'} and {fake_hub.DEAD} can't be"
        in refusal("someone/tiny")
    )
    assert "offline mode forbids" in refusal("someone/tiny", offline=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "offline mode forbids" in refusal("someone/tiny")


def test_a_cache_without_the_tokenizer_is_completed(fake, tmp_path):
    fake.add("someone/tiny", FILES)
    fake_hub.cache(tmp_path / "home", "someone/tiny", without(FILES, "tokenizer.json", "tokenizer_config.json"))
    assert examine(own_model("someone/tiny")).missing_bytes == len(FILES["model.safetensors"])


@pytest.mark.parametrize("entry", ["model_type", "architectures"])
def test_long_texts_of_a_config_are_cut(tmp_path, entry):
    text = "Long\nword " * 1000
    files = with_config(FILES, **{entry: [text] if entry == "architectures" else text})
    sentence = refusal(str(fake_hub.write(tmp_path / "Tiny", files)))
    assert f"({('Long word ' * 8)[:79]}…)" in sentence and len(sentence) < len(str(tmp_path)) + 250


def test_as_many_layers_and_experts_as_models_have_are_taken(tmp_path):
    sizes = {"num_hidden_layers": 1000, "num_experts": 4096, "eos_token_id": [1, 2]}
    found = examine(own_model(str(fake_hub.write(tmp_path / "Tiny", with_config(FILES, **sizes)))))
    assert found.config.num_hidden_layers == 1000
