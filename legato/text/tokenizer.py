"""BPE tokenizer of the official models, and `IncrementalBpeTokenizer` for streamed text.

`BpeTokenizer` is the Qwen2 byte-level tokenizer of a checkpoint (`vocab.json`, `merges.txt`, `tokenizer_config.json`).

Two differences from the official package:
- The pre-tokenizer is Qwen's regular expression, which was presumably used in training. The official package uses
  Mistral's for checkpoints in a local folder; `PreTokenizer.MISTRAL` selects that one.
- Special-token strings in client text, such as ``<tts_text_eod>``, are encoded as plain characters, not as control
  ids. In the official package such text can end the speech. `BpeTokenizer.encode` is the encoding of that package.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from legato.config.json_reader import quote, read_json, read_text_file
from legato.errors import CheckpointError, StateError
from legato.types import TextToken, WordSpan

FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


class PreTokenizer(Enum):
    """Regular expression that splits text into pieces before BPE; merges do not cross pieces."""

    QWEN = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    MISTRAL = (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


class BpeTokenizer:
    """Tokenizer of one checkpoint. Immutable; can be shared between sequences."""

    def __init__(self, folder: Path, pre_tokenizer: PreTokenizer) -> None:
        self.pre_tokenizer = pre_tokenizer
        self._normalizer = NFC()
        self._pre_tokenizer = PreTokenizerSequence(
            [Split(Regex(pre_tokenizer.value), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        model = _read_bpe(folder / "vocab.json", folder / "merges.txt")
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = self._normalizer
        self._tokenizer.pre_tokenizer = self._pre_tokenizer
        _add_specials(self._tokenizer, folder / "tokenizer_config.json")
        self._model = self._tokenizer.model

    @staticmethod
    def load(folder: Path, pre_tokenizer: PreTokenizer = PreTokenizer.QWEN) -> BpeTokenizer:
        """Load the tokenizer from `FILES` in `folder`. Raises `CheckpointError` with the missing or invalid file."""
        for name in FILES:
            if not (folder / name).is_file():
                raise CheckpointError(f"{folder / name} is missing: the text tokenizer needs it", field=name)
        return BpeTokenizer(folder, pre_tokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of ids, including special tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Encode as the official package does: special-token strings become their ids, nothing is stripped."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_text(self, text: str) -> tuple[TextToken, ...]:
        """Encode client text without leading and trailing white space, as `IncrementalBpeTokenizer` does."""
        normal = self.normalize(text.strip())
        return tuple(token for piece, _ in self.pre_tokenize(normal) for token in self.encode_piece(piece))

    def encode_transcript(self, transcript: str) -> tuple[TextToken, ...]:
        """Encode the transcript of a reference recording."""
        return self.encode_text(transcript)

    def encode_instruction(self, text: str) -> tuple[TextToken, ...]:
        """Encode an instruction block: ``<|im_start|>user`` newline, the text, ``<|im_end|>`` newline."""
        start = tuple((token_id,) for token_id in self.encode("<|im_start|>user\n"))
        end = tuple((token_id,) for token_id in self.encode("<|im_end|>\n"))
        return start + self.encode_text(text) + end

    def normalize(self, text: str) -> str:
        """Normalize to NFC with the Unicode tables of the `tokenizers` library."""
        return str(self._normalizer.normalize_str(text))

    def pre_tokenize(self, normal: str) -> list[tuple[str, int]]:
        """Split normalized text into pieces. Returns each piece in byte-level encoding with its end offset."""
        return [(piece, end) for piece, (_, end) in self._pre_tokenizer.pre_tokenize_str(normal)]

    def encode_piece(self, piece: str) -> list[TextToken]:
        """BPE tokens of one piece."""
        return [(token.id,) for token in self._model.tokenize(piece)]


class IncrementalBpeTokenizer:
    """`IncrementalTokenizer` of the official models.

    A pre-tokenizer piece is committed once the next character is known, a white-space piece when the white space ends.
    With Mistral's expression a word is committed when its run of letters ends. The look-ahead is thus one character
    after a word. Text without spaces is committed at the next punctuation mark or space. Leading and trailing white
    space is dropped. The tokens equal `BpeTokenizer.encode_text` of the whole text, however it is split.
    """

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = ""
        self._tokens: list[TextToken] = []
        self._ended = False

    def append(self, text: str) -> None:
        """Add text, split anywhere, even between a letter and its combining mark."""
        if self._ended:
            raise StateError("append() called after end() on a tokenizer")
        self._pending += text
        if not self._tokens:
            self._pending = self._pending.lstrip()
        # The last characters may still compose with the next one under NFC, so normalize them separately.
        stable = _stable_length(self._pending)
        head = self._tokenizer.normalize(self._pending[:stable])
        rest = self._pending[stable:]
        limit = min(len(head), self._committable_length(head + self._tokenizer.normalize(rest)))
        self._pending = self._commit(head + rest, limit)

    def end(self) -> None:
        """Finish the text: commit the rest without trailing white space."""
        if self._ended:
            raise StateError("end() called twice on a tokenizer")
        self._ended = True
        normal = self._tokenizer.normalize(self._pending.rstrip())
        self._pending = self._commit(normal, len(normal))

    @property
    def tokens(self) -> Sequence[TextToken]:
        """All tokens committed so far."""
        return self._tokens

    @property
    def ended(self) -> bool:
        """True once `end` was called."""
        return self._ended

    @property
    def words(self) -> Sequence[WordSpan]:
        """Always empty: the official models have no word times."""
        return ()

    def _committable_length(self, known: str) -> int:
        """Offset up to which the pieces of `known` do not depend on later text.

        Trailing white space may still grow and is dropped at the end of the text. The next character may belong to the
        same piece as the last one. Mistral's expression splits a run of letters only when the whole run is known.
        """
        end = len(known.rstrip())
        if end < len(known):
            return end
        end -= 1
        if self._tokenizer.pre_tokenizer is PreTokenizer.MISTRAL:
            while end >= 0 and unicodedata.category(known[end])[0] in "LMC":
                end -= 1
            end += 1
        return max(0, end)

    def _commit(self, normal: str, limit: int) -> str:
        """Commit the pieces that end at or before `limit` and return the remaining text."""
        done = 0
        for piece, end in self._tokenizer.pre_tokenize(normal):
            if end > limit:
                break
            self._tokens += self._tokenizer.encode_piece(piece)
            done = end
        return normal[done:]


def _stable_length(text: str) -> int:
    """Length of the prefix of `text` that later characters cannot change under NFC.

    Marks, Hangul vowels and Hangul finals compose with the preceding character. Unassigned and private-use characters
    are treated the same way, because the tokenizer's Unicode tables may be newer than Python's.
    """
    for i in range(len(text) - 1, -1, -1):
        if not _may_compose(text[i]):
            return i
    return 0


def _may_compose(character: str) -> bool:
    return (
        unicodedata.category(character)[0] == "M"
        or unicodedata.category(character) in ("Cn", "Co", "Cs")
        or "\u1160" <= character <= "\u11ff"
        or "\U00016d40" <= character <= "\U00016d7f"
    )


def _read_bpe(vocab: Path, merges: Path) -> BPE:
    """Vocabulary and merges. `CheckpointError` with the file if one cannot be read, or they do not fit together."""
    read_text_file(vocab)
    read_text_file(merges)
    try:
        return BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises this class itself
        raise CheckpointError(
            f"{vocab} and {merges.name} are no vocabulary and merges of one BPE tokenizer: {error}", field=merges.name
        ) from error


def _add_specials(tokenizer: Tokenizer, path: Path) -> None:
    """Add the special tokens of `tokenizer_config.json` and check that they get the ids listed there."""
    table = read_json(path, "it lists the special tokens").section("added_tokens_decoder")
    specials: dict[int, AddedToken] = {}
    for key in table.names():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise table.error(key, "named by a token id")
        entry = table.section(key)
        flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
        specials[int(key)] = AddedToken(
            entry.string("content"), **{flag: entry.has(flag) and entry.boolean(flag) for flag in flags}
        )
    tokenizer.add_tokens([specials[token_id] for token_id in sorted(specials)])
    for token_id, token in specials.items():
        found = tokenizer.token_to_id(token.content)
        if found != token_id:
            raise CheckpointError(
                f"{path} lists id {token_id} for {quote(token.content)}, but with vocab.json its id is {found}: "
                "the files belong to different tokenizers",
                field=path.name,
            )
