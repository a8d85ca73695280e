"""Export talker, code predictor and duration predictor to the package's voice folder.

Writes config.json, generation_config.json and model.safetensors (bfloat16); the codec has its own export. `--check`
loads the files with Legato and compares them with the training modules: equal logits (within 1e-3) and greedy codes.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import paths
import torch
import train_durations
import train_lm
from lm import VoiceLM
from safetensors.torch import load_file, save_file
from sizes import CODEBOOK_SIZE, DURATION, LOOK_AHEAD_PHONES, NUM_CODEBOOKS, PREDICTOR, SPEAKERS, TALKER
from torch import Tensor

from legato.config.model import TransformerConfig
from legato.text.english.phones import INVENTORY

SAMPLING = {
    "do_sample": True,
    "temperature": 0.5,
    "top_k": 20,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "subtalker_dosample": False,
    "subtalker_temperature": 1.0,
    "subtalker_top_k": 20,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 2000,
}


def stack_json(stack: TransformerConfig) -> dict[str, object]:
    """The official config keys of a transformer stack."""
    return {
        "hidden_size": stack.hidden_size,
        "intermediate_size": stack.intermediate_size,
        "num_hidden_layers": stack.num_hidden_layers,
        "num_attention_heads": stack.num_attention_heads,
        "num_key_value_heads": stack.num_key_value_heads,
        "head_dim": stack.head_dim,
        "rms_norm_eps": stack.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": stack.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": stack.max_position_embeddings,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def config_json() -> dict[str, object]:
    """`config.json` of the embedded voice."""
    track = {
        "front_end": "english_phones",
        "phones": list(INVENTORY),
        "tables": 4,
        "audio_delay_frames": TALKER.text.audio_delay_frames,
        "look_ahead_phones": LOOK_AHEAD_PHONES,
        "duration": {
            "hidden_size": DURATION.hidden_size,
            "num_layers": DURATION.num_layers,
            "kernel_size": DURATION.kernel_size,
        },
    }
    predictor = {**stack_json(PREDICTOR.stack), "vocab_size": CODEBOOK_SIZE, "num_code_groups": NUM_CODEBOOKS}
    talker = {
        **stack_json(TALKER.stack),
        "vocab_size": TALKER.vocab_size,
        "num_code_groups": NUM_CODEBOOKS,
        "feedback_codebooks": TALKER.feedback_codebooks,
        "codec_pad_id": TALKER.ids.pad,
        "codec_bos_id": TALKER.ids.bos,
        "codec_eos_token_id": TALKER.ids.eos,
        "spk_id": TALKER.speakers,
        "spk_is_dialect": dict.fromkeys(TALKER.speakers, False),
        "codec_language_id": {},
        "text_track": track,
        "code_predictor_config": predictor,
    }
    return {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "embedded",
        "tts_model_type": "embedded",
        "talker_config": talker,
    }


def tensors() -> dict[str, Tensor]:
    """All averaged weights by their checkpoint names, in bfloat16."""
    state = torch.load(train_lm.CHECKPOINT, map_location="cpu")
    model = VoiceLM()
    model.load_state_dict(state["average"])
    named = {**model.named_tensors(), **duration_tensors()}
    print(f"step {state['steps']}, {state['progress']:.2f} of the schedule, {state['cpu']:.0f} CPU-s", flush=True)
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in named.items()}


def duration_tensors() -> dict[str, Tensor]:
    """Weights of the duration predictor. Falls back to those of the voice in the repository."""
    if train_durations.CHECKPOINT.exists():
        trained = torch.load(train_durations.CHECKPOINT, map_location="cpu")
        return {f"duration.{name}": tensor for name, tensor in trained.items()}
    shipped = load_file(str(paths.VOICE_FOLDER / "model.safetensors"))
    return {name: tensor for name, tensor in shipped.items() if name.startswith("duration.")}


def export(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(), indent=2, ensure_ascii=False) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING, indent=2) + "\n")
    weights = tensors()
    partial = folder / "model.partial"
    save_file(weights, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / "model.safetensors")
    count = sum(tensor.numel() for tensor in weights.values())
    size = (folder / "model.safetensors").stat().st_size
    print(f"{len(weights)} tensors, {count / 1e6:.2f} M parameters, {size / 1e6:.1f} MB in {folder}", flush=True)


@torch.no_grad()
def check(folder: Path) -> None:
    """Compare the model loaded by Legato with the training modules on the stored weights."""
    from lm_data import Example, collate

    from legato.models.code_predictor.predict import frame_logits_uncached
    from legato.weights.loading import load_model

    loaded = load_model(folder)
    mine = VoiceLM().eval()
    stored = {name: tensor.float() for name, tensor in load_file(str(folder / "model.safetensors")).items()}
    named = mine.named_tensors()
    for name, tensor in named.items():
        tensor.copy_(stored[name])
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, len(INVENTORY), (30, 4), generator=generator).to(torch.int16)
    codes = torch.randint(0, CODEBOOK_SIZE, (30, NUM_CODEBOOKS), generator=generator).to(torch.int16)
    batch = collate([Example(speaker, tokens, codes) for speaker in range(len(SPEAKERS))])
    hidden = mine.hidden(batch)[batch.predicts]
    x = loaded.talker.embed_text(batch.text) * batch.has_text[..., None]
    x = x + loaded.talker.model.codec_embedding(batch.code)
    theirs = loaded.talker.forward_uncached(x, batch.valid)[batch.predicts]
    frames = batch.frames[batch.predicts]
    ours = torch.stack(mine.residual_logits(hidden, frames), dim=1)
    table = loaded.talker.model.codec_embedding
    other = frame_logits_uncached(loaded.code_predictor, table, theirs, frames)
    for what, a, b in (
        ("hidden", hidden, theirs),
        ("codebook 0", mine.talker.first_code_logits(hidden), loaded.talker.first_code_logits(theirs)),
        ("residual", ours, other),
    ):
        same = bool((a.argmax(-1) == b.argmax(-1)).all())
        print(f"{what}: largest difference {float((a - b).abs().max()):.2e}, same choices: {same}", flush=True)
        if not same or float((a - b).abs().max()) > 1e-3:
            raise SystemExit(f"the exported model differs from the training modules: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=paths.VOICE_FOLDER)
    parser.add_argument("--check", action="store_true", help="only compare the files with the training modules")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.check:
        export(arguments.folder)
    if (arguments.folder / "speech_tokenizer" / "model.safetensors").exists():
        check(arguments.folder)
    else:
        print("not checked: the codec is not exported yet", flush=True)


if __name__ == "__main__":
    main()
