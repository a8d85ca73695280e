"""Text -> BPE ids of the official models: the tokenizer, the wrapped texts, and the track that takes text in pieces.

Owns the Qwen2 byte-level tokenizer, read from a checkpoint's `vocab.json`, `merges.txt` and `tokenizer_config.json`,
and the rule by which streamed text is committed. Knows no prompt layout and no model.

Two decisions. The pre-tokenizer is Qwen's own expression, which the models were presumably trained with; the official
package swaps in Mistral's for checkpoints in a local folder, and `Splitting.MISTRAL` is that one. And text is text: a
string such as ``<tts_text_eod>`` in what a client sent is read as its characters and never becomes a control id, where
the official package would let it end the speech. `BpeTokenizer.encode` is the official encoding, specials included.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from legato.errors import CheckpointError, StateError
from legato.flow import TextToken, WordSpan

FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


class Splitting(Enum):
    """How text is cut into the pieces inside which BPE merges; the value is the regular expression."""

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
    """The tokenizer of one checkpoint. Immutable; safe to share between tracks."""

    def __init__(self, folder: Path, splitting: Splitting) -> None:
        self.splitting = splitting
        self._normalizer = NFC()
        self._split = Steps(
            [Split(Regex(splitting.value), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        model = BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        self._whole = Tokenizer(model)
        self._whole.normalizer = self._normalizer
        self._whole.pre_tokenizer = self._split
        _add_specials(self._whole, folder / "tokenizer_config.json")
        self._model = self._whole.model

    @staticmethod
    def load(folder: Path, splitting: Splitting = Splitting.QWEN) -> BpeTokenizer:
        """The tokenizer of `FILES` in `folder`. Raises `CheckpointError`, naming the file that is missing or wrong."""
        for name in FILES:
            if not (folder / name).is_file():
                raise CheckpointError(f"{folder / name} is missing: the text tokenizer needs it", field=name)
        return BpeTokenizer(folder, splitting)

    @property
    def size(self) -> int:
        """Ids in all, specials included."""
        return int(self._whole.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The official encoding of a string as it is: special-token strings become their ids, nothing is stripped."""
        return list(self._whole.encode(text, add_special_tokens=False).ids)

    def text(self, text: str) -> tuple[TextToken, ...]:
        """Tokens of a client's text, stripped of white space at both ends; equal to what a `BpeTrack` commits of it."""
        normal = self.normalize(text.strip())
        return tuple(token for piece, _ in self.pieces(normal) for token in self.merge(piece))

    def reference(self, transcript: str) -> tuple[TextToken, ...]:
        """Tokens of a reference's transcript."""
        return self.text(transcript)

    def instruct(self, text: str) -> tuple[TextToken, ...]:
        """The whole instruction block: ``<|im_start|>user`` newline, the text, ``<|im_end|>`` newline."""
        before, after = self.encode("<|im_start|>user\n"), self.encode("<|im_end|>\n")
        return (*((i,) for i in before), *self.text(text), *((i,) for i in after))

    def normalize(self, text: str) -> str:
        """NFC, by the tokenizer's own tables."""
        return str(self._normalizer.normalize_str(text))

    def pieces(self, normal: str) -> list[tuple[str, int]]:
        """Normalised text cut into pieces: each in byte-level spelling, with the character at which it ends."""
        return [(piece, end) for piece, (_, end) in self._split.pre_tokenize_str(normal)]

    def merge(self, piece: str) -> list[TextToken]:
        """The tokens of one piece."""
        return [(token.id,) for token in self._model.tokenize(piece)]


class BpeTrack:
    """A `TextTrack` over a `BpeTokenizer`.

    Commit rule: a piece of the pre-tokenizer is committed once the character after it is known (after white space, once
    the white space has ended; under Mistral's expression, once the run of letters has ended). So the look-ahead is one
    character beyond a word. Scripts without spaces are committed at the next mark or space. White space at both ends of
    the text is dropped. Tokens are those of `BpeTokenizer.text` of all text, wherever it is cut.
    """

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = ""
        self._tokens: list[TextToken] = []
        self._ended = False

    def append(self, text: str) -> None:
        """Take the next piece of text, cut anywhere, even between a letter and its combining mark."""
        if self._ended:
            raise StateError("text was appended after its end")
        self._pending += text
        if not self._tokens:
            self._pending = self._pending.lstrip()
        stable = _stable_length(self._pending)
        head = self._tokenizer.normalize(self._pending[:stable])
        rest = self._pending[stable:]
        limit = min(len(head), self._certain(head + self._tokenizer.normalize(rest)))
        self._pending = self._commit(head + rest, limit)

    def end(self) -> None:
        """No more text will come: commits what is left, without white space at the end."""
        if self._ended:
            raise StateError("the text was ended twice")
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
        """Always empty: the official models do not say when a word sounds."""
        return ()

    def _certain(self, known: str) -> int:
        """Pieces of `known` that end here or before do not depend on what follows.

        The white space at its end may still grow, and does not count if the text ends there. The last character may
        still be joined by the next one. Mistral's expression cuts a run of letters only when all of it is seen.
        """
        end = len(known.rstrip())
        if end < len(known):
            return end
        end -= 1
        if self._tokenizer.splitting is Splitting.MISTRAL:
            while end >= 0 and unicodedata.category(known[end])[0] in "LMC":
                end -= 1
            end += 1
        return max(0, end)

    def _commit(self, normal: str, limit: int) -> str:
        """Commit the pieces that end at or before `limit`; returns the text after them."""
        done = 0
        for piece, end in self._tokenizer.pieces(normal):
            if end > limit:
                break
            self._tokens += self._tokenizer.merge(piece)
            done = end
        return normal[done:]


def _stable_length(text: str) -> int:
    """How much of `text` no later character can compose with: up to its last character that begins anew.

    Marks and the vowels and finals of Hangul join what stands before them; unassigned and private characters are taken
    to do so too, since the tokenizer's tables may be newer than Python's.
    """
    for i in range(len(text) - 1, -1, -1):
        if not _joins(text[i]):
            return i
    return 0


def _joins(character: str) -> bool:
    return (
        unicodedata.category(character)[0] == "M"
        or unicodedata.category(character) in ("Cn", "Co", "Cs")
        or "\u1160" <= character <= "\u11ff"
        or "\U00016d40" <= character <= "\U00016d7f"
    )


def _add_specials(tokenizer: Tokenizer, path: Path) -> None:
    """Add the special tokens of `tokenizer_config.json` under exactly the ids that it names."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["added_tokens_decoder"]
        entries = sorted((int(number), str(entry["content"]), entry) for number, entry in table.items())
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path} has no readable added_tokens_decoder: {error!r}", field=path.name) from error
    tokenizer.add_tokens(
        [
            AddedToken(
                content,
                special=bool(entry.get("special", False)),
                normalized=bool(entry.get("normalized", False)),
                lstrip=bool(entry.get("lstrip", False)),
                rstrip=bool(entry.get("rstrip", False)),
                single_word=bool(entry.get("single_word", False)),
            )
            for _, content, entry in entries
        ]
    )
    for number, content, _ in entries:
        if tokenizer.token_to_id(content) != number:
            raise CheckpointError(
                f"{path} gives {content!r} the id {number}, but after vocab.json it is "
                f"{tokenizer.token_to_id(content)}: the files are not of one tokenizer",
                field=path.name,
            )
