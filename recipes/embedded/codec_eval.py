"""Evaluate the codec by resynthesis of held-out speech: word error rate and DNSMOS per speaker.

Appends one JSON line per result to `codec/judged.jsonl`. `--original` evaluates the teacher's speech (upper bound).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import metrics
import numpy as np
import paths
import soundfile
import torch
from codec_net import CodecDecoder, CodecSizes
from codec_train import CHECKPOINT
from features import EncodedStore
from numpy.typing import NDArray
from speech import FRAME_SAMPLES, SAMPLE_RATE_HZ, stores

EVALUATION_LOG = paths.CODEC / "judged.jsonl"
LISTS = ("plain", "hard.wordnet", "hard.own")


def load_decoder(checkpoint: Path) -> CodecDecoder:
    """Load the averaged weights of a training checkpoint, in float32."""
    decoder = CodecDecoder(CodecSizes())
    decoder.load_state_dict(torch.load(checkpoint, map_location="cpu")["average"])
    return decoder.eval()


@torch.no_grad()
def resynthesis(
    decoder: CodecDecoder | None, encoded: EncodedStore, per_list: int
) -> tuple[list[str], list[NDArray[np.float32]]]:
    """Texts and resynthesized waves of the first sentences of each list. Without a decoder: the teacher's waves."""
    texts, waves = [], []
    counts = dict.fromkeys(LISTS, 0)
    for row in encoded.rows():
        kind, start, frames = str(row["kind"]), int(row["code_start"]), int(row["frames"])
        if counts.get(kind, per_list) >= per_list:
            continue
        counts[kind] += 1
        if decoder is None:
            wave = encoded.samples()[start : start + frames].reshape(-1).astype(np.float32) / 32_767
        else:
            codes = torch.from_numpy(np.asarray(encoded.codes()[start : start + frames], np.int64))
            wave = decoder(codes[None])[0].clamp(-1, 1).numpy()
        assert len(wave) == frames * FRAME_SAMPLES
        texts.append(str(row["text"]))
        waves.append(wave)
    return texts, waves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--original", action="store_true")
    parser.add_argument("--per-list", type=int, default=7)
    parser.add_argument("--label", default="")
    parser.add_argument("--save", type=Path, help="folder for a few of the waves")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder = None if arguments.original else load_decoder(arguments.checkpoint)
    for store in stores(held_out=True):
        texts, waves = resynthesis(decoder, EncodedStore(store), arguments.per_list)
        heard = [metrics.transcribe(wave, SAMPLE_RATE_HZ) for wave in waves]
        row = {
            "at": time.strftime("%H:%M"),
            "label": arguments.label or ("original" if decoder is None else arguments.checkpoint.name),
            "store": store.name,
            "sentences": len(texts),
            "wer": round(metrics.word_error_rate(texts, heard), 3),
            **metrics.mos(waves, SAMPLE_RATE_HZ),
        }
        print(json.dumps(row), flush=True)
        with EVALUATION_LOG.open("a") as log:
            log.write(json.dumps(row) + "\n")
        if arguments.save:
            arguments.save.mkdir(parents=True, exist_ok=True)
            for number, wave in enumerate(waves[:6]):
                soundfile.write(arguments.save / f"{store.name}-{number}.wav", wave, SAMPLE_RATE_HZ)


if __name__ == "__main__":
    main()
