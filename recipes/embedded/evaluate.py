"""Evaluate the shipped voice on held-out sentences, together with its upper bounds.

Upper bounds: the teacher, resynthesis of the teacher's codes, and the talker with the teacher's durations. `voice` is
the shipped voice, run through the Legato package. Results go to `docs/voice/evaluation.json` and `evaluation.md`. Word
error rate by whisper tiny.en; both texts are normalized first, so that *3:30 p.m.* and *three thirty pm* are equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import jiwer
import metrics
import numpy as np
import paths
import torch
from alignment import align, quarter_track
from codec_tables import Tables
from evaluation_record import LISTS, Score, record, table
from features import stacked
from numpy.typing import NDArray
from sizes import SPEAKERS
from speech import LEAD_SAMPLES, SAMPLE_RATE_HZ, Sentence, SpeechStore, stores

from legato.text.english.normalizer import EnglishNormalizer, NormalizedWord

Wave = NDArray[np.float32]
RECORD = Path(__file__).resolve().parents[2] / "docs" / "voice"


def held_out() -> dict[str, list[str]]:
    """The held-out sentences by list."""
    found = json.loads(paths.HELD_OUT.read_text())
    return {**found, "hard": [*found["hard"]["wordnet"], *found["hard"]["own"]]}


def spoken_form(text: str) -> str:
    """Normalized lower-case words, for comparing texts."""
    normalizer = EnglishNormalizer()
    items = normalizer.push(text) + normalizer.finish()
    spoken = [item.text for item in items if isinstance(item, NormalizedWord)]
    words = [" ".join(word[:-1]) if word.endswith(".") else word for word in spoken]
    return " ".join(words).lower().replace("-", " ").replace("'", "")


Decode = Callable[[torch.Tensor], Wave]
"""Codes [T, 8] -> samples."""
Runs = Sequence[tuple[Sequence[str], Sequence[Wave]]]
"""(texts, waves) for each seed."""


def score(system: str, speaker: str, name: str, runs: Runs, *, sound: bool) -> Score:
    """Score one system on one list. `sound`: compute MOS, on the first run only."""
    by_seed: list[float] = []
    wrong: list[tuple[float, str]] = []
    for texts, waves in runs:
        references = [spoken_form(text) for text in texts]
        heard = [spoken_form(metrics.transcribe(wave, SAMPLE_RATE_HZ)) for wave in waves]
        by_seed.append(round(float(jiwer.wer(references, heard)), 4))
        wrong += [(float(jiwer.wer(r, h)), f"{r} -> {h}") for r, h in zip(references, heard, strict=True) if r != h]
    texts, waves = runs[0]
    return Score(
        system=system,
        speaker=speaker,
        list=name,
        sentences=len(texts),
        wer=round(statistics.mean(by_seed), 4),
        wer_by_seed=by_seed,
        mos=metrics.mos(waves, SAMPLE_RATE_HZ) if sound else {},
        worst=[line for _, line in sorted(wrong, reverse=True)[:8]],
    )


# --- systems ---------------------------------------------------------------------------------------------------------


def held_sentences(speaker: str, name: str) -> list[tuple[SpeechStore, Sentence]]:
    """The teacher's recordings of a list."""
    found = []
    for store in stores(held_out=True):
        found += [(store, s) for s in store.sentences() if s.speaker == speaker and s.kind.startswith(name)]
    return found


def teacher_waves(speaker: str, name: str, limit: int) -> tuple[list[str], list[Wave]]:
    chosen = held_sentences(speaker, name)[:limit]
    return [s.text for _, s in chosen], [store.wave(s) for store, s in chosen]


def codec_waves(speaker: str, name: str, limit: int, decode: Decode) -> tuple[list[str], list[Wave]]:
    texts, waves = teacher_waves(speaker, name, limit)
    tables = Tables.load()
    return texts, [decode(tables.encode(stacked(torch.from_numpy(wave)))) for wave in waves]


def oracle_waves(speaker: str, name: str, limit: int, decode: Decode, seed: int) -> tuple[list[str], list[Wave]]:
    """The averaged training weights with the teacher's durations."""
    from generate import generate

    chosen = held_sentences(speaker, name)[:limit]
    tracks = []
    for _, sentence in chosen:
        aligned = align(sentence.phonemes, sentence.durations_25ms)
        tokens = torch.tensor(quarter_track(aligned, lead_samples=LEAD_SAMPLES, frames=sentence.frames))
        tracks.append((SPEAKERS.index(speaker), tokens))
    codes = generate(trained(), tracks, seed=seed)
    return [s.text for _, s in chosen], [decode(c) for c in codes]


def trained() -> torch.nn.Module:
    from lm import VoiceLM
    from train_lm import CHECKPOINT

    model = VoiceLM()
    model.load_state_dict(torch.load(CHECKPOINT, map_location="cpu")["average"])
    return model.eval()


def training_decoder() -> Decode:
    """The codec decoder of the training checkpoint."""
    from codec_eval import load_decoder
    from codec_train import CHECKPOINT

    decoder = load_decoder(CHECKPOINT)

    @torch.no_grad()
    def decode(codes: torch.Tensor) -> Wave:
        wave: Wave = decoder(codes.long()[None])[0].clamp(-1, 1).float().numpy()
        return wave

    return decode


def predicted_waves(texts: Sequence[str], speaker: str, decode: Decode, seed: int, **sampling: float) -> list[Wave]:
    """The training modules with the run-time front end, for monitoring a training run."""
    import train_durations
    from generate import generate
    from sizes import DURATION, LOOK_AHEAD_PHONES, TALKER

    from legato.models.durations import DurationNet, SpeakerDurations
    from legato.text.english.phone_tokenizer import PhoneTokenizer
    from legato.text.english.phones import INVENTORY

    net = DurationNet(phones=len(INVENTORY), speakers=len(SPEAKERS), sizes=DURATION, look_ahead=LOOK_AHEAD_PHONES)
    net.load_state_dict(torch.load(train_durations.CHECKPOINT))
    row = SPEAKERS.index(speaker)
    tracks = []
    for text in texts:
        track = PhoneTokenizer(TALKER.text, SpeakerDurations(net.eval(), row))
        track.append(text)
        track.end()
        tracks.append((row, torch.tensor(list(track.tokens))))
    return [decode(codes) for codes in generate(trained(), tracks, seed=seed, **sampling)]


def shipped_waves(engine: object, texts: Sequence[str], speaker: str, seed: int) -> tuple[list[Wave], float]:
    """Waves synthesized by Legato, and the real-time factor."""
    waves: list[Wave] = []
    spent = spoken = 0.0
    for text in texts:
        started = time.perf_counter()
        speech = engine.say(text, voice=speaker, seed=seed)
        spent += time.perf_counter() - started
        spoken += len(speech.samples) / speech.sample_rate_hz
        waves.append(np.array(speech.samples))
    return waves, spent / spoken


def similarity(waves: Sequence[Wave], teacher: Sequence[Wave]) -> float:
    """Cosine of mean speaker embeddings (resemblyzer)."""
    from resemblyzer import VoiceEncoder, preprocess_wav

    encoder = VoiceEncoder("cpu", verbose=False)
    means = [encoder.embed_speaker([preprocess_wav(w, SAMPLE_RATE_HZ) for w in group]) for group in (waves, teacher)]
    return round(float(means[0] @ means[1]), 4)


# --- main ------------------------------------------------------------------------------------------------------------


def scores(arguments: argparse.Namespace) -> Iterator[Score]:
    decode = training_decoder() if set(arguments.systems) & {"codec", "oracle", "training"} else None
    engine = None
    if "voice" in arguments.systems:
        import legato

        engine = legato.load(arguments.model, device=arguments.device, quant=arguments.quant)
    for speaker in arguments.speakers:
        for name in arguments.lists:
            texts = held_out()[name][: arguments.limit]
            reference, teacher = teacher_waves(speaker, name, arguments.limit)
            for system in arguments.systems:
                if system in ("teacher", "codec", "oracle") and not reference:
                    continue
                factor = None
                if system == "teacher":
                    runs = [(reference, teacher)]
                elif system == "codec":
                    runs = [codec_waves(speaker, name, arguments.limit, decode)]
                elif system == "oracle":
                    runs = [oracle_waves(speaker, name, arguments.limit, decode, seed) for seed in arguments.seeds]
                elif system == "training":
                    runs = [(texts, predicted_waves(texts, speaker, decode, seed)) for seed in arguments.seeds]
                else:
                    made = [shipped_waves(engine, texts, speaker, seed) for seed in arguments.seeds]
                    runs = [(texts, waves) for waves, _ in made]
                    factor = round(statistics.median(f for _, f in made), 3)
                found = score(system, speaker, name, runs, sound=not arguments.words_only)
                found.real_time_factor = factor
                if system != "teacher" and teacher and not arguments.words_only:
                    found.similarity = similarity(runs[0][1][:10], teacher[:10])
                yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=["teacher", "codec", "oracle", "voice"])
    parser.add_argument("--speakers", nargs="+", default=list(SPEAKERS))
    parser.add_argument("--lists", nargs="+", default=list(LISTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quant", default="none", help="as in legato say")
    parser.add_argument("--words-only", action="store_true", help="no MOS and no speaker similarity")
    parser.add_argument("--record", type=Path, help=f"folder for evaluation.json and .md (committed: {RECORD})")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Score] = []
    for row in scores(arguments):
        rows.append(row)
        print(json.dumps(asdict(row), ensure_ascii=False), flush=True)
        if arguments.record:
            record(row, arguments.record)
    print(table(rows))


if __name__ == "__main__":
    main()
