"""Import existing teacher speech into a store, from a folder of audio files with a `manifest.jsonl`.

A manifest line has `file`, `start` and `samples` (in the decoded file), `text`, `phonemes` and `durations_25ms`.
Held-out sentences are skipped. Existing stores are not changed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import soundfile
from speech import SAMPLE_RATE_HZ, SpeechStore
from teacher import held_out_texts, letters_only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", required=True)
    parser.add_argument("--speaker", required=True)
    arguments = parser.parse_args()
    store = SpeechStore(arguments.store)
    if store.manifest_path.exists():
        print(f"{store.name} already exists")
        return
    held_out, last_file, wave = held_out_texts(), "", None
    for index, line in enumerate((arguments.folder / "manifest.jsonl").read_text().splitlines()):
        row = json.loads(line)
        if row["file"] != last_file:
            last_file = row["file"]
            wave, rate = soundfile.read(arguments.folder / last_file, dtype="float32")
            if rate != SAMPLE_RATE_HZ:
                raise SystemExit(f"{last_file} has {rate} Hz, expected {SAMPLE_RATE_HZ}")
        if wave is None or letters_only(row["text"]) in held_out:
            continue
        store.append(
            wave[row["start"] : row["start"] + row["samples"]],
            index=index,
            speaker=arguments.speaker,
            text=row["text"],
            phonemes=row["phonemes"],
            durations_25ms=row["durations_25ms"],
        )


if __name__ == "__main__":
    main()
