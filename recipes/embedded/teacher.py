"""Synthesize the training speech with the teacher (Kokoro), using the phones of the run-time front end.

Each speaker has a store of the same name. A rerun continues after the last sentence in the stores. Held-out sentences
are skipped. While the file `speech/PAUSE` exists, the script waits.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path

import kokoro
import paths
from speech import HELD_OUT_PREFIX, SpeechStore
from teacher_text import kokoro_input

SPEAKERS = {"heart": "af_heart", "michael": "am_michael"}
MAX_PHONEMES = 400
PAUSE = paths.SPEECH / "PAUSE"


def held_out_lists(path: Path = paths.HELD_OUT) -> dict[str, list[str]]:
    """The held-out sentences by the dotted name of their list."""

    def lists(name: str, value: object) -> Iterable[tuple[str, list[str]]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from lists(f"{name}.{key}" if name else key, inner)
        elif isinstance(value, list):
            yield name, [item if isinstance(item, str) else item["text"] for item in value]

    return dict(lists("", json.loads(path.read_text()))) if path.exists() else {}


def held_out_texts(path: Path = paths.HELD_OUT) -> frozenset[str]:
    """All held-out sentences, reduced to their letters."""
    return frozenset(letters_only(text) for texts in held_out_lists(path).values() for text in texts)


def letters_only(text: str) -> str:
    """Lower-case letters of a text, for comparing sentences."""
    return re.sub(r"[^a-z]", "", text.lower())


class Synthesizer:
    """The run-time front end and the loaded teacher."""

    def __init__(self) -> None:
        self._kokoro = kokoro.Kokoro()
        self._styles = {speaker: kokoro.load_styles(voice) for speaker, voice in SPEAKERS.items()}

    def synthesize(self, text: str, speaker: str, store: SpeechStore, **about: object) -> float:
        """Synthesize one text into the store. Returns its duration in seconds, 0.0 if it was skipped."""
        try:
            phonemes = kokoro_input(text)
        except KeyError as unknown:
            print(f"skipped (unknown symbol {unknown}): {text}", flush=True)
            return 0.0
        unknown_symbols = self._kokoro.unknown(phonemes)
        if not phonemes or unknown_symbols or len(phonemes) > MAX_PHONEMES:
            print(f"skipped ({len(phonemes)} phonemes, unknown symbols {unknown_symbols}): {text}", flush=True)
            return 0.0
        samples, durations = self._kokoro.speak(phonemes, self._styles[speaker])
        store.append(samples, speaker=speaker, text=text, phonemes=phonemes, durations_25ms=durations, **about)
        return len(samples) / kokoro.SAMPLE_RATE_HZ


def synthesize_training_speech(cpu_seconds: float, speaker_order: list[str]) -> None:
    """Synthesize the sentences, cycling through `speaker_order`, until the budget is used up."""
    synthesizer, held_out = Synthesizer(), held_out_texts()
    stores = {speaker: SpeechStore(speaker) for speaker in SPEAKERS}
    sentences = [json.loads(line) for line in paths.SENTENCES.read_text().splitlines()]
    first = 1 + max((row.index for store in stores.values() for row in store.sentences()), default=-1)
    audio_s = 0.0
    for index in range(first, len(sentences)):
        while PAUSE.exists():
            time.sleep(5)
        if time.process_time() > cpu_seconds:
            break
        text, kind = sentences[index]["text"], sentences[index]["kind"]
        speaker = speaker_order[index % len(speaker_order)]
        if letters_only(text) not in held_out:
            audio_s += synthesizer.synthesize(text, speaker, stores[speaker], index=index, kind=kind)
        if index % 20 == 0:
            print(f"sentence {index}: {audio_s:.0f} s of speech in {time.process_time():.0f} CPU-s", flush=True)


def synthesize_held_out(per_list: int) -> None:
    """Synthesize the first sentences of each held-out list with all speakers, for evaluation."""
    synthesizer = Synthesizer()
    for speaker in SPEAKERS:
        store = SpeechStore(HELD_OUT_PREFIX + speaker)
        done = {row.text for row in store.sentences()}
        texts = [(kind, text) for kind, list_ in held_out_lists().items() for text in list_[:per_list]]
        for index, (kind, text) in enumerate(texts):
            if text not in done:
                synthesizer.synthesize(text, speaker, store, index=index, kind=kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-seconds", type=float, default=10 * 3600)
    parser.add_argument("--speaker-order", "--turns", default="heart,michael", help="speakers, used in turn")
    parser.add_argument("--held-out", type=int, default=0, help="only synthesize this many of each held-out list")
    arguments = parser.parse_args()
    if arguments.held_out:
        synthesize_held_out(arguments.held_out)
    else:
        synthesize_training_speech(arguments.cpu_seconds, arguments.speaker_order.split(","))


if __name__ == "__main__":
    main()
