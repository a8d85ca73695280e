"""Tokenizer against a conformance corpus, and streamed tokenization against the whole text.

The cases and ids are from the Apache-2.0 conformance corpus of franken_tts (ids by transformers 4.57.3).
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import NotRequired

from legato.errors import CheckpointError, StateError
from legato.text.tokenizer import FILES, BpeTokenizer, IncrementalBpeTokenizer, PreTokenizer
from legato.weights.random_checkpoint import write_tokenizer

FIRST_SPECIAL = 151643


class Case(TypedDict):
    name: str
    text: str
    qwen: list[int]
    mistral: NotRequired[list[int]]


CASES: list[Case] = json.loads((Path(__file__).parents[1] / "fixtures/tokenizer/cases.json").read_text())
SPECIAL = [case for case in CASES if "<|im_start|>" in case["text"] or case["name"].startswith("special-literal")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def tokenizers(folder: Path) -> dict[PreTokenizer, BpeTokenizer]:
    return {pre_tokenizer: BpeTokenizer.load(folder, pre_tokenizer) for pre_tokenizer in PreTokenizer}


def streamed(tokenizer: BpeTokenizer, pieces: list[str]) -> tuple[tuple[int, ...], ...]:
    """Tokens of an incremental tokenizer fed with `pieces`. Asserts that committed tokens never change."""
    incremental = IncrementalBpeTokenizer(tokenizer)
    committed: list[tuple[int, ...]] = []
    for piece in pieces:
        incremental.append(piece)
        assert list(incremental.tokens[: len(committed)]) == committed
        committed = list(incremental.tokens)
    incremental.end()
    assert list(incremental.tokens[: len(committed)]) == committed
    return tuple(incremental.tokens)


def test_corpus_has_92_cases_of_which_6_depend_on_pre_tokenizer() -> None:
    assert len(CASES) == 92
    assert sum("mistral" in case for case in CASES) == 6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_official_encoding(case: Case, tokenizers: dict[PreTokenizer, BpeTokenizer]) -> None:
    assert tokenizers[PreTokenizer.QWEN].encode(case["text"]) == case["qwen"]
    assert tokenizers[PreTokenizer.MISTRAL].encode(case["text"]) == case.get("mistral", case["qwen"])


@pytest.mark.parametrize("pre_tokenizer", PreTokenizer)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_streamed_corpus_matches_whole_text(
    case: Case, pre_tokenizer: PreTokenizer, tokenizers: dict[PreTokenizer, BpeTokenizer]
) -> None:
    tokenizer, text = tokenizers[pre_tokenizer], case["text"]
    whole = tokenizer.encode_text(text)
    if case not in SPECIAL and text == text.strip():
        wanted = case.get("mistral", case["qwen"]) if pre_tokenizer is PreTokenizer.MISTRAL else case["qwen"]
        assert [token for (token,) in whole] == wanted
    for cut in range(0, len(text) + 1, 1 if len(text) < 100 else 37):
        assert streamed(tokenizer, [text[:cut], text[cut:]]) == whole
    assert streamed(tokenizer, list(text)) == whole


TROUBLE = st.text(
    alphabet="ab Z'stl\n\r\t 19.!=/<|>"
    + "\u00a0\u3000"
    + "e\u0301\u0308\u0338\u0327"
    + "ก\u0e31สว"
    + "한\u1112\u1161\u11ab中。ǅʰ😀\u200d",
    max_size=24,
)


@pytest.mark.parametrize("pre_tokenizer", PreTokenizer)
@given(text=TROUBLE, cuts=st.lists(st.integers(0, 24), max_size=6))
@settings(max_examples=400, deadline=None)
def test_streamed_random_text_matches_whole_text(
    pre_tokenizer: PreTokenizer, text: str, cuts: list[int], tokenizers: dict[PreTokenizer, BpeTokenizer]
) -> None:
    """White space, contractions, marks, Hangul jamo and case changes, in any order and split."""
    tokenizer = tokenizers[pre_tokenizer]
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert streamed(tokenizer, pieces) == tokenizer.encode_text(text)
    plain = tokenizer.normalize(text.strip())
    if "<|" not in plain:
        assert [token for (token,) in tokenizer.encode_text(text)] == tokenizer.encode(plain)


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("Hello", "s"),
        ("!", "\n"),
        ("don'", "t"),
        ("e", "\u0301"),
        ("\u1112", "\u1161"),
        ("a \n", "\nb"),
        ("= x =", "\u0338"),
    ],
)
def test_encoding_pieces_separately_differs(
    first: str, rest: str, tokenizers: dict[PreTokenizer, BpeTokenizer]
) -> None:
    """Negative control: encoding each piece separately gives different tokens."""
    tokenizer = tokenizers[PreTokenizer.QWEN]
    separate = [*tokenizer.encode(tokenizer.normalize(first)), *tokenizer.encode(tokenizer.normalize(rest))]
    assert separate != tokenizer.encode(tokenizer.normalize(first + rest))
    assert streamed(tokenizer, [first, rest]) == tokenizer.encode_text(first + rest)


def test_look_ahead_is_one_character(tokenizers: dict[PreTokenizer, BpeTokenizer]) -> None:
    incremental = IncrementalBpeTokenizer(tokenizers[PreTokenizer.QWEN])
    seen: list[int] = []
    for character in "Hello, world. 你好，世界":
        incremental.append(character)
        seen.append(len(incremental.tokens))
    # one piece each: "Hello" "," " world" "." " 你好" (two tokens) "，世界" (not yet)
    assert seen == [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 3, 4, 4, 4, 6, 6, 6]
    incremental.end()
    assert tuple(incremental.tokens) == tokenizers[PreTokenizer.QWEN].encode_text("Hello, world. 你好，世界")


@pytest.mark.parametrize("case", SPECIAL, ids=lambda case: case["name"])
def test_client_text_never_yields_control_ids(case: Case, tokenizers: dict[PreTokenizer, BpeTokenizer]) -> None:
    tokens = tokenizers[PreTokenizer.QWEN].encode_text(case["text"])
    assert all(token < FIRST_SPECIAL for (token,) in tokens)
    if case["name"] != "special-lookalike":
        assert any(token >= FIRST_SPECIAL for token in case["qwen"])


@pytest.mark.parametrize("text", ["Speak softly.", "用温柔的声音说", " spaced \n"])
def test_instruction_and_transcript_match_official_slices(
    text: str, tokenizers: dict[PreTokenizer, BpeTokenizer]
) -> None:
    tokenizer, plain = tokenizers[PreTokenizer.QWEN], text.strip()
    block = tokenizer.encode(f"<|im_start|>user\n{plain}<|im_end|>\n")
    assert tokenizer.encode_instruction(text) == tuple((token,) for token in block)
    target = tokenizer.encode(f"<|im_start|>assistant\n{plain}<|im_end|>\n<|im_start|>assistant\n")
    assert target[:3] == [151644, 77091, 198]
    assert tokenizer.encode_text(text) == tuple((token,) for token in target[3:-5])
    reference = tokenizer.encode(f"<|im_start|>assistant\n{plain}<|im_end|>\n")
    assert tokenizer.encode_transcript(text) == tuple((token,) for token in reference[3:-2])


def test_leading_and_trailing_white_space_is_dropped(tokenizers: dict[PreTokenizer, BpeTokenizer]) -> None:
    tokenizer = tokenizers[PreTokenizer.QWEN]
    assert streamed(tokenizer, [" \n", "\n Hi", "!", "\n", " \n"]) == tokenizer.encode_text("Hi!")
    assert streamed(tokenizer, ["\n", " "]) == ()


def test_incremental_tokenizer_rejects_calls_after_end(tokenizers: dict[PreTokenizer, BpeTokenizer]) -> None:
    incremental = IncrementalBpeTokenizer(tokenizers[PreTokenizer.QWEN])
    incremental.end()
    with pytest.raises(StateError):
        incremental.append("late")
    with pytest.raises(StateError):
        incremental.end()


@pytest.mark.parametrize("name", FILES)
def test_missing_file_error_has_file_name(name: str, folder: Path, tmp_path: Path) -> None:
    for other in FILES:
        if other != name:
            (tmp_path / other).symlink_to(folder / other)
    with pytest.raises(CheckpointError, match=name):
        BpeTokenizer.load(tmp_path)


def test_mismatched_tokenizer_files_raise(folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(folder / name)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"]["151999"] = config["added_tokens_decoder"].pop("151675")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="belong to different tokenizers"):
        BpeTokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="added_tokens_decoder"):
        BpeTokenizer.load(tmp_path)
