"""Teacher speech: Kokoro reads the sentences in the phonemes that the run-time front end makes, for as long as it
may.

Owns which sentence is read next and by whom. Run again it goes on where the stores end. Sentences of the
held-out list are never read. While a file `speech/PAUSE` exists it waits. Each speaker's store bears the
speaker's name.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path

import kokoro
import places
from speech import HELD_OUT_PREFIX, Store
from teacher_text import kokoro_input

SPEAKERS = {"heart": "af_heart", "michael": "am_michael"}
LONGEST_PHONEMES = 400
PAUSE = places.SPEECH / "PAUSE"


def held_out_lists(path: Path = places.HELD_OUT) -> dict[str, list[str]]:
    """The sentences kept for evaluation, by the dotted name of their list."""

    def lists(name: str, value: object) -> Iterable[tuple[str, list[str]]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from lists(f"{name}.{key}" if name else key, inner)
        elif isinstance(value, list):
            yield name, [item if isinstance(item, str) else item["text"] for item in value]

    return dict(lists("", json.loads(path.read_text()))) if path.exists() else {}


def held_out_texts(path: Path = places.HELD_OUT) -> frozenset[str]:
    """The letters of every sentence kept for evaluation."""
    return frozenset(letters(text) for texts in held_out_lists(path).values() for text in texts)


def letters(text: str) -> str:
    """What two texts have in common when they are the same sentence."""
    return re.sub(r"[^a-z]", "", text.lower())


class Reader:
    """The loaded teacher with the run-time front end before it."""

    def __init__(self) -> None:
        self._kokoro = kokoro.Kokoro()
        self._styles = {speaker: kokoro.load_styles(voice) for speaker, voice in SPEAKERS.items()}

    def read(self, text: str, speaker: str, store: Store, **about: object) -> float:
        """Speaks one text into the store; its seconds, 0.0 when it cannot be spoken."""
        try:
            phonemes = kokoro_input(text)
        except KeyError as unknown:
            print(f"skipped, symbol {unknown}: {text}", flush=True)
            return 0.0
        if not phonemes or self._kokoro.unknown(phonemes) or len(phonemes) > LONGEST_PHONEMES:
            print(f"skipped, {self._kokoro.unknown(phonemes)}: {text}", flush=True)
            return 0.0
        samples, durations = self._kokoro.speak(phonemes, self._styles[speaker])
        store.append(samples, speaker=speaker, text=text, phonemes=phonemes, durations_25ms=durations, **about)
        return len(samples) / kokoro.SAMPLE_RATE_HZ


def read_aloud(cpu_seconds: float, turns: list[str]) -> None:
    """Reads sentence after sentence, the speakers taking `turns`, until the budget is spent."""
    reader, held_out = Reader(), held_out_texts()
    stores = {speaker: Store(speaker) for speaker in SPEAKERS}
    sentences = [json.loads(line) for line in places.SENTENCES.read_text().splitlines()]
    first = 1 + max((row.index for store in stores.values() for row in store.sentences()), default=-1)
    audio_s = 0.0
    for index in range(first, len(sentences)):
        while PAUSE.exists():
            time.sleep(5)
        if time.process_time() > cpu_seconds:
            break
        text, speaker = sentences[index]["text"], turns[index % len(turns)]
        if letters(text) not in held_out:
            audio_s += reader.read(text, speaker, stores[speaker], index=index, kind=sentences[index]["kind"])
        if index % 20 == 0:
            print(f"sentence {index}: {audio_s:.0f} s of speech in {time.process_time():.0f} CPU-s", flush=True)


def read_held_out(per_list: int) -> None:
    """Both speakers read the first sentences of each held-out list, for judging a codec's resynthesis."""
    reader = Reader()
    for speaker in SPEAKERS:
        store = Store(HELD_OUT_PREFIX + speaker)
        done = {row.text for row in store.sentences()}
        texts = [(kind, text) for kind, list_ in held_out_lists().items() for text in list_[:per_list]]
        for index, (kind, text) in enumerate(texts):
            if text not in done:
                reader.read(text, speaker, store, index=index, kind=kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-seconds", type=float, default=10 * 3600)
    parser.add_argument("--turns", default="heart,michael", help="who reads, in turn")
    parser.add_argument("--held-out", type=int, default=0, help="instead: read this many of each held-out list")
    arguments = parser.parse_args()
    if arguments.held_out:
        read_held_out(arguments.held_out)
    else:
        read_aloud(arguments.cpu_seconds, arguments.turns.split(","))


if __name__ == "__main__":
    main()
