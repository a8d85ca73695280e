"""The whole model in one file: text to audio in plain PyTorch, without Legato's engine, streaming or batching.

    python examples/minimal.py MODEL "text" out.wav [--voice NAME] [--instruct TEXT] [--language NAME] [--seed N]

MODEL is "embedded" or the folder of a CustomVoice, VoiceDesign or Base checkpoint (Base: no cloned voice). Only the
text front end is Legato's. Flow: text -> prompt -> talker (one step per 80 ms frame: codebook 0) -> code predictor (the
other codebooks) -> codec decoder -> samples. Shapes: T positions, D channels, Q codebooks, N samples.
"""

from __future__ import annotations

import json
import sys
import wave
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from safetensors.torch import load_file
from torch import Tensor

from legato.config.checkpoint import read_model_config
from legato.models.durations import DurationNet, SpeakerDurations
from legato.text.english.phone_tokenizer import PhoneTokenizer
from legato.text.tokenizer import BpeTokenizer

Config = dict  # parsed JSON
Token = tuple[int, ...]  # a BPE id, or four phone ids
Cache = list[tuple[Tensor, Tensor]]  # keys and values [H, T, d] of each layer
Prompt = tuple[Tensor, Tensor, Tensor, int]  # prompt [P, D], text vectors fed with the frames, padding, frame limit
Noise = Callable[[int], Sequence[float]]  # frame number -> Q numbers in [0, 1)


class Weights(dict[str, Tensor]):
    """The tensors of a checkpoint by name, in float32, and the layers that use them."""

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.weight"], self.get(f"{name}.bias"))

    def rms_norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self[f"{name}.weight"], eps)

    def conv(self, name: str, x: Tensor, dilation: int = 1, groups: int = 1) -> Tensor:
        """Causal convolution: [1, C, T] -> [1, C', T]. Zeros on the left stand for the past."""
        weight = self[f"{name}.conv.weight"]
        x = F.pad(x, ((weight.shape[-1] - 1) * dilation, 0))
        return F.conv1d(x, weight, self[f"{name}.conv.bias"], dilation=dilation, groups=groups)

    def upsample(self, name: str, x: Tensor, stride: int) -> Tensor:
        """Causal transposed convolution: [1, C, T] -> [1, C', T * stride]. The tail needs later input and is cut."""
        y = F.conv_transpose1d(x, self[f"{name}.conv.weight"], self[f"{name}.conv.bias"], stride=stride)
        return y[..., : x.shape[-1] * stride]

    def snake(self, name: str, x: Tensor) -> Tensor:
        alpha, beta = self[f"{name}.alpha"].exp()[:, None], self[f"{name}.beta"].exp()[:, None]
        return x + (x * alpha).sin().square() / (beta + 1e-9)

    def transformer(self, prefix: str, c: Config, x: Tensor, cache: Cache) -> Tensor:
        """`x` [T, D] -> final hidden states [T, D]. `cache` is extended in place. Used by all three models."""
        T, d, eps, start = x.shape[0], c["head_dim"], c["rms_norm_eps"], cache[0][0].shape[1] if cache else 0
        window = c.get("sliding_window") or start + T  # the codec sees some frames, the language models everything
        mask = torch.ones(T, start + T, dtype=torch.bool).tril(start).triu(start - window + 1)
        for i in range(c["num_hidden_layers"]):
            at = f"{prefix}layers.{i}."
            h = self.rms_norm(at + "input_layernorm", x, eps)
            q, k, v = (self.linear(f"{at}self_attn.{n}_proj", h).view(T, -1, d).transpose(0, 1) for n in "qkv")
            if at + "self_attn.q_norm.weight" in self:  # the codec's transformer has no per-head norms
                q, k = self.rms_norm(at + "self_attn.q_norm", q, eps), self.rms_norm(at + "self_attn.k_norm", k, eps)
            q, k = rope(q, start, c["rope_theta"]), rope(k, start, c["rope_theta"])
            if start:
                k, v = torch.cat((cache[i][0], k), dim=1), torch.cat((cache[i][1], v), dim=1)
            cache[i : i + 1] = [(k, v)]
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(0, 1).reshape(T, -1)
            x = x + self.linear(at + "self_attn.o_proj", h) * self.get(at + "self_attn_layer_scale.scale", 1.0)
            h = self.rms_norm(at + "post_attention_layernorm", x, eps)
            h = F.silu(self.linear(at + "mlp.gate_proj", h)) * self.linear(at + "mlp.up_proj", h)
            x = x + self.linear(at + "mlp.down_proj", h) * self.get(at + "mlp_layer_scale.scale", 1.0)
        return self.rms_norm(prefix + "norm", x, eps)

    def embed_text(self, tokens: Sequence[Token]) -> Tensor:
        """Text tokens -> [T, D]: a projected BPE embedding, or the sum of phone embeddings (embedded voice)."""
        ids = torch.tensor(tokens)
        if "talker.model.text_embedding.weight" not in self:
            tables = [self[f"talker.model.phone_embedding.{j}.weight"] for j in range(ids.shape[1])]
            return torch.stack([table[ids[:, j]] for j, table in enumerate(tables)]).sum(0)
        h = self.linear("talker.text_projection.linear_fc1", self["talker.model.text_embedding.weight"][ids[:, 0]])
        return self.linear("talker.text_projection.linear_fc2", F.silu(h))


def rope(x: Tensor, start: int, theta: float) -> Tensor:
    """Rotary position embedding of heads [H, T, d], rotate-half layout."""
    T, d = x.shape[1:]
    angles = (torch.arange(start, start + T)[:, None] / theta ** (torch.arange(0, d, 2) / d)).repeat(1, 2)
    return x * angles.cos() + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), dim=-1) * angles.sin()


def embedded_prompt(w: Weights, c: Config, folder: Path, text: str, voice: str) -> Prompt:
    """The embedded voice: the speaker, then phones that run ahead of the audio by a fixed number of frames."""
    t, front_end = c["talker_config"], read_model_config(folder).talker.text
    speakers, phones, look_ahead = list(t["spk_id"]), len(front_end.phones), front_end.look_ahead_phones
    net = DurationNet(phones=phones, speakers=len(speakers), sizes=front_end.duration, look_ahead=look_ahead)
    net.load_state_dict({name[9:]: tensor for name, tensor in w.items() if name.startswith("duration.")})
    tokenizer = PhoneTokenizer(front_end, SpeakerDurations(net, speakers.index(voice)))
    tokenizer.append(text)
    tokenizer.end()
    delay, padding = front_end.audio_delay_frames, (0,) * front_end.tables
    vectors = w.embed_text([*tokenizer.tokens, *[padding] * (delay + 1)])
    codes = w["talker.model.codec_embedding.weight"]
    vectors[: delay + 1] += codes[[t["codec_pad_id"]] * delay + [t["codec_bos_id"]]]
    prompt = torch.cat((codes[[t["spk_id"][voice]]], vectors[: delay + 1]))
    return prompt, vectors[delay + 1 :], w.embed_text([padding])[0], len(tokenizer.tokens)


def official_prompt(w: Weights, c: Config, folder: Path, text: str, voice: str, instruct: str, language: str) -> Prompt:
    """The official models: instruction, role, tags (language, speaker), text. A row adds a text and a code vector."""
    t, tokenizer = c["talker_config"], BpeTokenizer.load(folder)
    pad, bos, eos = ((c[f"tts_{name}_token_id"],) for name in ("pad", "bos", "eos"))
    plain = [(i,) for i in tokenizer.encode("<|im_start|>assistant\n")]
    if instruct and (c["tts_model_type"], c["tts_model_size"]) != ("custom_voice", "0b6"):  # that one ignores it
        plain = [*tokenizer.encode_instruction(instruct), *plain]
    if language in ("auto", "chinese"):
        language = t["spk_is_dialect"].get(voice) or language
    known = [] if language == "auto" else [t["codec_language_id"][language]]
    tags = [t["codec_think_id" if known else "codec_nothink_id"], t["codec_think_bos_id"], *known]
    tags += [t["codec_think_eos_id"], *([t["spk_id"][voice]] if voice else [])]
    rows = [*((pad, tag) for tag in tags), (bos, t["codec_pad_id"])]
    tokens: list[Token] = [*tokenizer.encode_text(text), eos]
    if c["tts_model_type"] == "base":  # text streams in, one token per frame
        rows.append((tokens.pop(0), t["codec_bos_id"]))
    else:  # all text before the first frame
        rows += [*((token, t["codec_pad_id"]) for token in tokens), (pad, t["codec_bos_id"])]
        tokens = [pad]
    prompt = w.embed_text([*plain, *(token for token, _ in rows)])
    prompt[len(plain) :] += w["talker.model.codec_embedding.weight"][[code for _, code in rows]]
    return prompt, w.embed_text(tokens), w.embed_text([pad])[0], 24 + 6 * len(text)  # a bound if it does not stop


def sample(logits: Tensor, temperature: float, top_k: int, top_p: float, uniform: float) -> int:
    """Sample one code from logits [V]: temperature, top-k, top-p, then the inverse of the cumulative distribution."""
    ranked, codes = logits.sort(descending=True, stable=True)
    if temperature == 0 or top_k == 1:
        return int(codes[0])
    weights = ((ranked - ranked[0]).double() / temperature).exp()
    if top_k:
        weights[ranked < ranked[min(top_k, len(ranked)) - 1]] = 0  # codes equal to the k-th are kept
    if top_p < 1:
        before = weights.cumsum(0) - weights
        weights[(before >= top_p * weights.sum()) & (before > 0)] = 0
    cumulative = weights.cumsum(0)
    return int(codes[min(int((cumulative <= uniform * cumulative[-1]).sum()), int((weights > 0).sum()) - 1)])


def predict_frame(w: Weights, c: Config, how: Config, hidden: Tensor, first: int, noise: Sequence[float]) -> list[int]:
    """The code predictor: all Q codes of one frame, from the talker's hidden state [D] and the first code."""
    prefix, codes, cache = "talker.code_predictor.", [first], Cache()
    x = torch.stack((hidden, w["talker.model.codec_embedding.weight"][first]))
    temperature = how["subtalker_temperature"] if how["subtalker_dosample"] else 0.0
    for j in range(c["num_code_groups"] - 1):
        if prefix + "small_to_mtp_projection.weight" in w:
            x = w.linear(prefix + "small_to_mtp_projection", x)
        logits = w.linear(f"{prefix}lm_head.{j}", w.transformer(prefix + "model.", c, x, cache)[-1])
        codes.append(sample(logits, temperature, how["subtalker_top_k"], how["subtalker_top_p"], noise[j + 1]))
        x = w[f"{prefix}model.codec_embedding.{j}.weight"][codes[-1:]]
    return codes


def generate(w: Weights, c: Config, how: Config, prompt: Prompt, frames: int, noise: Noise) -> list[list[int]]:
    """The talker: codes [frames][Q], until it samples the end code or there are `frames` of them."""
    t, (x, fed, padding, _) = c["talker_config"], prompt
    p, eos, ids = t["code_predictor_config"], t["codec_eos_token_id"], torch.arange(t["vocab_size"])
    codes, cache, penalty = list[list[int]](), Cache(), how["repetition_penalty"]
    for n in range(frames):
        hidden = w.transformer("talker.model.", t, x, cache)[-1]
        logits = w.linear("talker.codec_head", hidden)
        seen = [code[0] for code in codes]
        logits[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)[seen]
        may_end = n >= 2 and "text_track" not in t  # the embedded voice ends with its text instead
        logits[(ids >= p["vocab_size"]) & ((ids != eos) | (not may_end))] = -torch.inf
        temperature = how["temperature"] if how["do_sample"] else 0.0
        first = sample(logits, temperature, how["top_k"], how["top_p"], (uniforms := noise(n))[0])
        if first == eos:
            break
        codes.append(predict_frame(w, p, how, hidden, first, uniforms))
        parts = [fed[n] if n < len(fed) else padding, w["talker.model.codec_embedding.weight"][first]]
        for j, code in enumerate(codes[-1][1 : t.get("feedback_codebooks")]):
            parts.append(w[f"talker.code_predictor.model.codec_embedding.{j}.weight"][code])
        x = torch.stack(parts).sum(0, keepdim=True)
    return codes


def decode(w: Weights, c: Config, codes: Tensor) -> Tensor:
    """The codec decoder: codes [T, Q] -> samples [N]."""
    x = torch.zeros(())
    for part, columns in (("first", codes.T[:1]), ("rest", codes.T[1:])):  # residual vector quantization
        books = [f"decoder.quantizer.rvq_{part}.vq.layers.{i}._codebook." for i in range(len(columns))]
        tables = [w[book + "embedding_sum"] / w[book + "cluster_usage"].clamp(min=1e-5)[:, None] for book in books]
        total = torch.stack([table[column] for table, column in zip(tables, columns, strict=True)]).sum(0)
        x = x + total @ w[f"decoder.quantizer.rvq_{part}.output_proj.weight"][:, :, 0].T
    x = w.conv("decoder.pre_conv", x.T[None])
    h = w.transformer("decoder.pre_transformer.", c, w.linear("decoder.pre_transformer.input_proj", x[0].T), [])
    x = w.linear("decoder.pre_transformer.output_proj", h).T[None]
    for i, ratio in enumerate(c["upsampling_ratios"]):
        at = f"decoder.upsample.{i}."
        x = w.upsample(at + "0", x, ratio)
        h = w.conv(at + "1.dwconv", x, groups=x.shape[1])[0].T
        h = F.layer_norm(h, h.shape[-1:], w[at + "1.norm.weight"], w[at + "1.norm.bias"], 1e-6)
        x = x + (w.linear(at + "1.pwconv2", F.gelu(w.linear(at + "1.pwconv1", h))) * w[at + "1.gamma"]).T
    x = w.conv("decoder.decoder.0", x)
    for i, rate in enumerate(c["upsample_rates"], start=1):
        at = f"decoder.decoder.{i}.block."
        x = w.upsample(at + "1", w.snake(at + "0", x), rate)
        for unit, dilation in ((2, 1), (3, 3), (4, 9)):
            h = w.conv(f"{at}{unit}.conv1", w.snake(f"{at}{unit}.act1", x), dilation)
            x = x + w.conv(f"{at}{unit}.conv2", w.snake(f"{at}{unit}.act2", h))
    return w.conv(f"decoder.decoder.{i + 2}", w.snake(f"decoder.decoder.{i + 1}", x)).flatten().clamp(-1, 1)


def read(folder: Path) -> tuple[Config, Weights]:
    tensors = [item for path in sorted(folder.glob("*.safetensors")) for item in load_file(path).items()]
    return json.loads((folder / "config.json").read_text("utf-8")), Weights((k, v.float()) for k, v in tensors)


@torch.inference_mode()
def synthesize(
    model: str, text: str, voice: str = "", instruct: str = "", language: str = "auto", limit: int = 0, *, noise: Noise
) -> tuple[list[list[int]], Tensor, int]:
    """Codes [T][Q], samples [N] and the sample rate. `limit`: the most frames; 0: as many as the text needs."""
    folder = Path(str(files("legato").joinpath("assets/voice")) if model == "embedded" else model)
    (config, w), (codec, codec_w) = read(folder), read(folder / "speech_tokenizer")
    how = json.loads((folder / "generation_config.json").read_text("utf-8"))
    voice = voice or next(iter(config["talker_config"]["spk_id"]), "")
    if config["tts_model_type"] == "embedded":
        prompt = embedded_prompt(w, config, folder, text, voice)
    else:
        prompt = official_prompt(w, config, folder, text, voice, instruct, language)
    codes = generate(w, config, how, prompt, min(int(limit) or prompt[3], prompt[3]), noise)
    return codes, decode(codec_w, codec["decoder_config"], torch.tensor(codes)), codec["output_sample_rate"]


if __name__ == "__main__":
    model, text, output, *options = sys.argv[1:]
    choices = dict(zip((name.removeprefix("--") for name in options[::2]), options[1::2], strict=True))
    torch.manual_seed(int(choices.pop("seed", "0")))
    codes, samples, rate_hz = synthesize(model, text, **choices, noise=lambda _: torch.rand(64).tolist())
    with wave.open(output, "wb") as file:
        file.setparams((1, 2, rate_hz, 0, "NONE", ""))
        file.writeframes((samples * 32768).round().clamp(-32768, 32767).to(torch.int16).numpy().tobytes())
    print(f"wrote {output}: {len(samples) / rate_hz:.2f} s, {len(codes)} frames")
