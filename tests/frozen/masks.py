"""Mask the parts of messages that differ between runs: ids, times, the version, and packet boundaries."""

from __future__ import annotations

from collections.abc import Mapping

import legato

IDS = frozenset({"id", "event_id", "response_id", "item_id", "request_id", "session_id", "x-request-id"})
TIMES = frozenset({"timing", "server-timing", "date", "created_at"})
HEARD = frozenset({"sent_samples", "heard_text", "heard_chars", "heard_error_chars"})
"""Fields of an interruption report that depend on the time of the interruption."""
BY_CLOCK = frozenset({"played_samples"})
"""Fields that depend on it only if the client did not report what it had played."""

Message = dict[str, object]
PACKED = ("audio", "words")
"""Kinds of entries that are merged, in the order in which they are recorded."""


def masked(value: object, *, also: frozenset[str] = frozenset()) -> object:
    """`value` with placeholders for the fields that differ between runs, and for the text of error messages.

    `also`: names of further fields to replace.
    """
    if isinstance(value, Mapping):
        if value.get("played_by") == "clock":
            also = also | BY_CLOCK
        return {str(name): _field(str(name), each, also) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each, also=also) for each in value]
    return "<version>" if value == legato.__version__ else value


def _field(name: str, value: object, also: frozenset[str]) -> object:
    if name in IDS and isinstance(value, str) and value:
        known = value.split("_")[0] if "_" in value else ""
        return f"<{known} id>" if known in ("req", "resp", "item", "event", "sess") else value
    if name in TIMES and value:
        return "<times>"
    if name == "fingerprint" and isinstance(value, Mapping):  # of this machine
        return {str(key): f"<{type(each).__name__}>" for key, each in value.items()}
    if name in HEARD or name in also:
        return f"<{type(value).__name__}>"
    if name == "message" and isinstance(value, str):
        return "<message>"
    return masked(value, also=also)


class Transcript:
    """Messages in order. Consecutive packets are merged into one entry.

    The packet boundaries of an utterance, and the places of word times between packets, depend on the speed of the
    machine. In a sequence of packets, the audio is therefore recorded first, then all words.
    """

    def __init__(self) -> None:
        self.entries: list[Message] = []

    def add(self, message: Mapping[str, object], *, also: frozenset[str] = frozenset()) -> None:
        """Record a message, masked. `also`: further fields that depend on timing."""
        body = masked(message, also=also)
        assert isinstance(body, dict)
        self.entries.append(body)

    def audio(self, kind: str, samples: int, fields: Mapping[str, object]) -> None:
        """Record a packet of `samples` samples. `fields`: the fields of its message, without the audio."""
        body = masked(fields)
        self._merge(kind, {"packed": "audio", "fields": body, "samples": samples})

    def words(self, kind: str, words: object, fields: Mapping[str, object]) -> None:
        """Record word times between packets."""
        assert isinstance(words, list)
        self._merge(kind, {"packed": "words", "fields": masked(fields), "words": words})

    def _merge(self, kind: str, entry: Message) -> None:
        entry["type"] = kind
        run: list[Message] = []
        while self.entries and "packed" in self.entries[-1]:
            run.insert(0, self.entries.pop())
        for index, old in enumerate(run):
            if old["type"] == kind and old["fields"] == entry["fields"]:
                run[index] = _joined(old, entry)
                break
        else:
            run.append(entry)
        self.entries += sorted(run, key=lambda each: PACKED.index(str(each["packed"])))


def _joined(old: Message, new: Message) -> Message:
    if old["packed"] == "words":
        first, second = old["words"], new["words"]
        assert isinstance(first, list)
        assert isinstance(second, list)
        return {**old, "words": first + second}
    first, second = old["samples"], new["samples"]
    assert isinstance(first, int)
    assert isinstance(second, int)
    return {**old, "samples": first + second}
