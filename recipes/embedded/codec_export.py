"""Export the codec of the embedded voice in the official format and compare it with the engine's decoder.

Writes `speech_tokenizer/config.json` and `speech_tokenizer/model.safetensors` (bfloat16) of the voice folder. Files are
replaced by rename, because a running engine may have the old ones mapped. The check reads the written files: training
net and engine decoder (whole and in uneven windows) must agree within 1e-4 on held-out codes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import paths
import torch
from codec_net import CodecDecoder, CodecSizes
from codec_start import read_weights
from codec_train import CHECKPOINT
from features import EncodedStore
from safetensors.torch import save_file
from speech import FRAME_SAMPLES, SAMPLE_RATE_HZ, stores
from torch import Tensor

from legato.config.codec_checkpoint import CODEC_FOLDER, read_codec_config
from legato.models.codec.decoder import CodecDecoder as EngineDecoder
from legato.models.codec.quantizer import codebook_table
from legato.weights import name_mapping as names

TOLERANCE = 1e-4
WINDOWS_FRAMES = (1, 3, 7, 2, 1, 20)


def written_config(sizes: CodecSizes) -> dict[str, object]:
    return {
        "model_type": "qwen3_tts_tokenizer_12hz",
        "input_sample_rate": SAMPLE_RATE_HZ,
        "output_sample_rate": SAMPLE_RATE_HZ,
        "encode_downsample_rate": FRAME_SAMPLES,
        "decode_upsample_rate": FRAME_SAMPLES,
        "decoder_config": sizes.as_json(),
    }


def write(weights: dict[str, Tensor], sizes: CodecSizes, folder: Path) -> None:
    """Write the weights of the training net and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {names.DECODER + name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    _replace(folder / "config.json", json.dumps(written_config(sizes), indent=2).encode() + b"\n")
    partial = folder / "model.partial"
    save_file(stored, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.rename(folder / names.MAIN_FILE)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


def engine_decoder(folder: Path) -> EngineDecoder:
    """The engine's decoder with the stored weights, in float32."""
    decoder = EngineDecoder(read_codec_config(folder).decoder)
    weights = read_weights(folder)
    total, usage = "embedding_sum", "cluster_usage"
    for name in [name for name in weights if name.endswith(total)]:
        stem = name.removesuffix(total)
        weights[stem + "table"] = codebook_table(weights.pop(name), weights.pop(stem + usage))
    decoder.load_state_dict(weights)
    return decoder.eval()


@torch.no_grad()
def largest_difference(folder: Path, codes: Tensor) -> float:
    """Largest difference between the training net and the engine's decoder (whole and in windows); codes [T, Q]."""
    ours = CodecDecoder(CodecSizes())
    ours.load_state_dict(read_weights(folder))
    engine = engine_decoder(folder)
    wanted = ours.eval()(codes[None]).clamp(-1, 1)
    whole, _ = engine(engine.initial_history(1), codes[None])
    history, pieces, start = engine.initial_history(1), [], 0
    while start < len(codes):
        frames = WINDOWS_FRAMES[len(pieces) % len(WINDOWS_FRAMES)]
        piece, history = engine(history, codes[None, start : start + frames])
        pieces.append(piece)
        start += frames
    return max(float((wanted - made).abs().max()) for made in (whole, torch.cat(pieces, dim=1)))


def held_out_codes(frames: int) -> Tensor:
    """Codes of consecutive held-out sentences. `frames` should exceed the attention window."""
    encoded = EncodedStore(stores(held_out=True)[0])
    return torch.from_numpy(np.asarray(encoded.codes()[:frames], np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--folder", type=Path, default=paths.VOICE_FOLDER / CODEC_FOLDER)
    arguments = parser.parse_args()
    weights = torch.load(arguments.checkpoint, map_location="cpu")["average"]
    write(weights, CodecSizes(), arguments.folder)
    difference = largest_difference(arguments.folder, held_out_codes(150))
    size_mb = (arguments.folder / names.MAIN_FILE).stat().st_size / 1e6
    print(f"{arguments.folder}: {size_mb:.1f} MB, largest difference to the engine's decoder {difference:.2e}")
    if difference > TOLERANCE:
        raise SystemExit(f"engine decoder and training net differ by {difference:.2e}, limit {TOLERANCE}")


if __name__ == "__main__":
    main()
