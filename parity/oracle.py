"""The official side: runs `qwen-tts` on every case and records its results.

    .venv-parity/bin/python -m parity.oracle CHECKPOINTS RECORDS NAME...

CHECKPOINTS holds a folder for each NAME of `cases.CHECKPOINTS`; RECORDS receives one .npz a checkpoint and
`oracle.json`. Runs in the parity environment (float32, CPU) without Legato. Uses the package's public
`from_pretrained`, `generate_*` and `decode`; the two inner `generate` calls get two more arguments, so that they also
return logits and scores.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parity import stubs

stubs.install()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from qwen_tts import Qwen3TTSModel  # noqa: E402
from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram  # noqa: E402
from transformers import Qwen2TokenizerFast  # noqa: E402

from parity import cases, variants  # noqa: E402

Arrays = dict[str, np.ndarray]


@dataclass
class Capture:
    """Inputs and outputs of one call of the talker's `generate`. Filled by `record_calls`, read by `run_case`."""

    prompt: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    feed: torch.Tensor | None = None
    logits: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)
    codes: torch.Tensor | None = None
    sequences: torch.Tensor | None = None
    predictor_logits: list[torch.Tensor] = field(default_factory=list)
    predictor_scores: list[torch.Tensor] = field(default_factory=list)


def record_calls(model: Any, capture: Capture) -> None:
    """Wrap both `generate` methods of this instance: also request logits and scores, and store them in `capture`."""
    talker, predictor = model.talker, model.talker.code_predictor
    talker_generate, predictor_generate = type(talker).generate, type(predictor).generate

    def recorded_talker(**arguments: Any) -> Any:
        result = talker_generate(talker, **arguments, output_logits=True, output_scores=True)
        capture.prompt = arguments["inputs_embeds"]
        capture.mask = arguments["attention_mask"]
        capture.feed = arguments["trailing_text_hidden"]
        capture.logits = list(result.logits)
        capture.scores = list(result.scores)
        capture.hidden = [states[0][-1][:, -1] for states in result.hidden_states]
        frames = [states[-1] for states in result.hidden_states if states[-1] is not None]
        capture.codes = torch.stack(frames, dim=1)
        capture.sequences = result.sequences
        return result

    def recorded_predictor(**arguments: Any) -> Any:
        result = predictor_generate(predictor, **arguments, output_logits=True, output_scores=True)
        capture.predictor_logits.append(torch.stack(result.logits, dim=1))
        capture.predictor_scores.append(torch.stack(result.scores, dim=1))
        return result

    talker.generate = recorded_talker
    predictor.generate = recorded_predictor


def call(tts: Any, case: cases.Case) -> Any:
    """Run the case through the package's public entry point; returns the waveform of every row."""
    rows = case.rows
    options: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False}
    if case.sampling is not None:
        sampling = case.sampling
        torch.manual_seed(sampling.seed)
        options = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "repetition_penalty": sampling.repetition_penalty,
            "subtalker_dosample": True,
            "subtalker_temperature": sampling.predictor_temperature,
            "subtalker_top_k": sampling.predictor_top_k,
            "subtalker_top_p": sampling.predictor_top_p,
        }
    options |= {"max_new_tokens": case.max_new_tokens, "non_streaming_mode": case.whole}
    texts, languages = [row.text for row in rows], [row.language for row in rows]
    kind = tts.model.tts_model_type
    if kind == "custom_voice":
        speakers, instructs = [row.speaker for row in rows], [row.instruct for row in rows]
        return tts.generate_custom_voice(texts, speakers, languages, instructs, **options)[0]
    if kind == "voice_design":
        return tts.generate_voice_design(texts, [row.instruct for row in rows], languages, **options)[0]
    prompt = []
    for row in rows:
        audio = (cases.reference_audio(row.reference_samples), 24000)
        transcript = row.reference_text or None
        prompt += tts.create_voice_clone_prompt(audio, transcript, x_vector_only_mode=transcript is None)
    return tts.generate_voice_clone(texts, languages, voice_clone_prompt=prompt, **options)[0]


def token_ids(tts: Any, text: str) -> Any:
    return tts._tokenize_texts([text])[0][0].tolist()


def row_ids(tts: Any, row: cases.Row) -> dict[str, list[int]]:
    """The package's token ids of the row's texts, with the chat template."""
    ids: dict[str, list[int]] = {"target": token_ids(tts, tts._build_assistant_text(row.text))}
    if row.instruct:
        ids["instruct"] = token_ids(tts, tts._build_instruct_text(row.instruct))
    if row.reference_text:
        ids["reference"] = token_ids(tts, tts._build_ref_text(row.reference_text))
    return ids


def run_case(tts: Any, case: cases.Case) -> tuple[Arrays, dict[str, Any]]:
    """Arrays of every row under `case#row#what`, and the facts for `oracle.json`."""
    capture = Capture()
    record_calls(tts.model, capture)
    waves = call(tts, case)
    assert capture.prompt is not None
    assert capture.mask is not None
    assert capture.feed is not None
    assert capture.codes is not None
    assert capture.sequences is not None
    logits, scores = torch.stack(capture.logits, dim=1), torch.stack(capture.scores, dim=1)
    eos = tts.model.config.talker_config.codec_eos_token_id
    samples = tts.model.speech_tokenizer.get_decode_upsample_rate()
    arrays: Arrays = {}
    margin = float("inf")
    for index in range(len(case.rows)):
        key = f"{case.name}#{index}#"
        codes = capture.codes[index]
        stops = (codes[:, 0] == eos).nonzero()
        frames = int(stops[0, 0]) if len(stops) else len(codes)
        arrays[key + "prompt"] = capture.prompt[index][capture.mask[index].bool()].numpy()
        arrays[key + "feed"] = capture.feed[index].numpy()
        arrays[key + "codes"] = codes[:frames].numpy().astype(np.int16)
        arrays[key + "next"] = capture.sequences[index, frames].numpy().astype(np.int16)
        arrays[key + "logits"] = logits[index, : frames + 1].numpy()
        arrays[key + "hidden"] = torch.stack(capture.hidden, dim=1)[index, : frames + 1].numpy()
        arrays[key + "predictor_logits"] = torch.stack(capture.predictor_logits, dim=1)[index, :frames].numpy()
        # The package removes the reference by a rounded ratio, which may be off by a sample: take the last samples.
        arrays[key + "wave"] = np.asarray(waves[index][len(waves[index]) - frames * samples :], dtype=np.float32)
        if case.sampling is not None:
            arrays[key + "scores"] = scores[index, : frames + 1].numpy()
            arrays[key + "predictor_scores"] = torch.stack(capture.predictor_scores, dim=1)[index, :frames].numpy()
        residual = torch.stack(capture.predictor_scores, dim=1)[index, :frames]
        for chosen_from in (scores[index, : frames + 1], residual):
            best = chosen_from.topk(2, dim=-1).values
            margin = min(margin, float((best[..., 0] - best[..., 1]).min()))
    facts = {"ids": [row_ids(tts, row) for row in case.rows], "smallest_margin": margin}
    return arrays, facts


def run_codec(tts: Any, checkpoint: str) -> Arrays:
    """Codec decoder and encoder: outputs of the tokenizer's public `decode` and `encode`."""
    tokenizer = tts.model.speech_tokenizer
    decoder = tokenizer.model.config.decoder_config
    arrays: Arrays = {}
    for frames in cases.codec_lengths(checkpoint):
        codes = cases.random_codes(frames, decoder.num_quantizers, decoder.codebook_size)
        arrays[f"decode#{frames}"] = tokenizer.decode([{"audio_codes": torch.from_numpy(codes)}])[0][0]
    if tts.model.tts_model_type != "base":
        return arrays
    for samples in cases.encoder_lengths(checkpoint):
        encoded = tokenizer.encode(cases.reference_audio(samples), sr=24000)
        arrays[f"encode#{samples}"] = encoded.audio_codes[0].numpy().astype(np.int16)
    return arrays


def run_speaker(tts: Any) -> Arrays:
    """Mel frames [T, 128] and the speaker vector [D] of each reference."""
    arrays: Arrays = {}
    for samples in cases.MEL_LENGTHS:
        audio = cases.reference_audio(samples)
        mel = mel_spectrogram(
            torch.from_numpy(audio)[None],
            n_fft=1024,
            num_mels=128,
            sampling_rate=24000,
            hop_size=256,
            win_size=1024,
            fmin=0,
            fmax=12000,
        )
        arrays[f"mel#{samples}"] = mel[0].T.numpy()
        arrays[f"speaker#{samples}"] = tts.model.extract_speaker_embedding(audio, 24000).numpy()
    return arrays


def run_texts(tts: Any, checkpoint: Path) -> dict[str, Any]:
    """Token ids of `cases.TEXTS` from the wrapper's tokenizer and from Qwen's own tokenizer class."""
    own = Qwen2TokenizerFast.from_pretrained(checkpoint)
    wrapper = tts.processor.tokenizer
    return {
        "wrapper_ids": [wrapper(text)["input_ids"] for text in cases.TEXTS],
        "own_ids": [own(text)["input_ids"] for text in cases.TEXTS],
        "wrapper_pre_tokenizer": str(wrapper.backend_tokenizer.pre_tokenizer),
        "own_pre_tokenizer": str(own.backend_tokenizer.pre_tokenizer),
    }


def load(path: Path) -> Any:
    return Qwen3TTSModel.from_pretrained(str(path), dtype=torch.float32)


def run_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """All cases of one checkpoint."""
    tts = load(path)
    arrays = run_codec(tts, path.name)
    facts: dict[str, Any] = {"cases": {}, "texts": run_texts(tts, path)}
    if tts.model.tts_model_type == "base":
        arrays |= run_speaker(tts)
    eos = tts.model.config.talker_config.codec_eos_token_id
    for case in cases.cases_of(path.name):
        winner = -1
        found, about = run_case(tts, case)
        if case.stop_at is not None:
            winner = int(found[f"{case.name}#0#codes"][case.stop_at, 0])
            with tempfile.TemporaryDirectory() as scratch:
                stopping = variants.stopping_copy(path, Path(scratch), eos=eos, winner=winner)
                found, about = run_case(load(stopping), case)
        arrays |= found
        facts["cases"][case.name] = about | {"winner": winner}
        frames = [len(found[f"{case.name}#{index}#codes"]) for index in range(len(case.rows))]
        print(f"  {case.name}: frames {frames}, smallest margin {about['smallest_margin']:.3g}", flush=True)
    return arrays, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.records.mkdir(parents=True, exist_ok=True)
    packages = ("qwen-tts", "transformers", "torch", "numpy", "tokenizers", "librosa")
    facts: dict[str, Any] = {
        "packages": {name: version(name) for name in packages},
        "python": platform.python_version(),
        "checkpoints": {},
    }
    for name in arguments.names:
        started = time.perf_counter()
        print(f"official package on {name}", flush=True)
        arrays, about = run_checkpoint(arguments.checkpoints / name)
        np.savez(arguments.records / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        facts["checkpoints"][name] = about
        print(f"  {time.perf_counter() - started:.0f} s", flush=True)
    (arguments.records / "oracle.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
