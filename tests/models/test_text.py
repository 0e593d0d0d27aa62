"""Token by token, text never shows half a character, and joined it is the decoded text."""

import random

import pytest
from fakes import byte_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specviz.models.text import INCOMPLETE, LONGEST_WAIT, TextStream, TokenText, decode

PIECES = ["a", " ", "\n", "é", "한", "글", "😀", "👩‍💻", "ß", "�", "</s>"]


def streamed(ids: list[int], prompt: str = "so ") -> list[str]:
    stream = TextStream(byte_tokenizer(), byte_tokenizer().encode(prompt))
    pieces = [stream.push(token) for token in ids]
    pieces[-1] += stream.flush()
    return pieces


@pytest.fixture(scope="module")
def sentencepiece() -> PreTrainedTokenizerFast:
    """Marks word beginnings with ▁ and falls back to bytes, as Llama 2 does; decoding drops one leading space."""
    vocab = {"<unk>": 0, "▁Hello": 1, "▁world": 2, "s": 3, **{f"<0x{byte:02X}>": 4 + byte for byte in range(256)}}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_an_emoji_split_over_tokens_appears_whole_with_its_last_token():
    assert streamed(byte_tokenizer().encode("a😀b")) == ["a", "", "", "", "😀", "b"]


def test_pieces_of_random_texts_join_to_the_decoded_text():
    rng = random.Random(0)
    for _ in range(200):
        ids = byte_tokenizer().encode("".join(rng.choices(PIECES, k=12)))
        assert "".join(streamed(ids)) == decode(byte_tokenizer(), ids), ids


def test_pieces_of_random_bytes_join_to_the_decoded_text():
    rng = random.Random(1)
    for _ in range(500):
        junk = rng.choices(range(len(byte_tokenizer())), k=rng.randint(1, 40))
        emoji = byte_tokenizer().encode(rng.choice(PIECES))
        ids = [*junk[:20], *emoji, *junk[20:]]
        assert "".join(streamed(ids)) == decode(byte_tokenizer(), ids), ids


def test_junk_before_an_emoji_does_not_swallow_it():
    """The wait for a character ends in the middle of the emoji; that must not count as shown."""
    emoji = byte_tokenizer().encode("😀")
    lone = byte_tokenizer().encode("é")[1:]  # a continuation byte that continues nothing
    for junk in range(LONGEST_WAIT + 4):
        assert "".join(streamed([*lone * junk, *emoji])) == INCOMPLETE * junk + "😀", junk


def test_bytes_that_never_become_a_character_are_shown_in_the_end():
    lone = byte_tokenizer().encode("é")[1:]
    pieces = streamed(lone * 20)
    assert "".join(pieces) == INCOMPLETE * 20
    assert pieces[: LONGEST_WAIT - 1] == [""] * (LONGEST_WAIT - 1)
    assert any(pieces[LONGEST_WAIT - 1 : -1]), "everything was held back to the end of the run"


def test_a_character_begun_by_the_prompt_is_shown_whole():
    emoji = byte_tokenizer().encode("😀")
    for begun in range(1, 4):
        stream = TextStream(byte_tokenizer(), [*byte_tokenizer().encode("x"), *emoji[:begun]])
        pieces = [stream.push(token) for token in [*emoji[begun:], *byte_tokenizer().encode("y")]]
        assert "".join(pieces) == "😀y"


def test_the_spaces_of_sentencepiece_survive(sentencepiece):
    stream = TextStream(sentencepiece, [1])
    assert [stream.push(token) for token in (2, 3, 2, 1)] == [" world", "s", " world", " Hello"]


def test_bytes_of_sentencepiece_wait_for_their_character(sentencepiece):
    stream = TextStream(sentencepiece, [1])
    assert [stream.push(4 + byte) for byte in "한".encode()] == ["", "", "한"]
    assert stream.push(2) == " world"


def test_the_cost_of_a_token_does_not_grow_with_the_text():
    class Counting:
        def __init__(self) -> None:
            self.longest = 0

        def decode(self, ids: list[int], **settings: bool) -> str:
            self.longest = max(self.longest, len(ids))
            return str(byte_tokenizer().decode(ids, **settings))

    counting = Counting()
    stream = TextStream(counting, list(range(65, 90)))
    for token in byte_tokenizer().encode("ordinary words 😀 " * 40):
        stream.push(token)
    assert counting.longest <= 4 + 4 * LONGEST_WAIT


def test_special_tokens_are_text_and_spaces_are_not_tidied():
    ids = byte_tokenizer().encode("a , b</s>")
    assert decode(byte_tokenizer(), ids) == "a , b</s>"
    assert "".join(streamed(ids)) == "a , b</s>"


def test_without_a_tokenizer_ids_are_named():
    stream = TextStream(None, [1, 2])
    assert stream.push(7) == "⟨7⟩" and stream.flush() == ""
    assert TokenText(None)(7) == "⟨7⟩"


def test_single_tokens_are_named_where_they_are_no_character(sentencepiece):
    text = TokenText(byte_tokenizer())
    assert [text(token) for token in byte_tokenizer().encode("a 😀")] == ["a", " ", "⟨F0⟩", "⟨9F⟩", "⟨98⟩", "⟨80⟩"]
    assert text(len(byte_tokenizer()) + 5) == f"⟨{len(byte_tokenizer()) + 5}⟩"  # a padding row of the vocabulary
    assert TokenText(sentencepiece)(2) == " world"
    assert TokenText(sentencepiece)(4 + 0xF0) == "⟨F0⟩"
