"""Loading: all kinds and dtypes, errors for invalid files, and memory.

Faulty checkpoints are edited copies of tiny ones.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from legato.errors import CheckpointError, TensorError, UnsupportedError
from legato.models.codec.quantizer import codebook_table
from legato.weights.loading import LoadedModel, load_model
from legato.weights.progress import Progress
from legato.weights.quantization import quantized_names
from legato.weights.random_configs import CHECKPOINT_KINDS
from tests.conftest import TinyCheckpoint

MAIN, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
TINY = [like for like in CHECKPOINT_KINDS if like.startswith("tiny")]
Tensors = dict[str, Tensor]


def copy(source: Path, target: Path, edit: Callable[[Tensors], None], file: str = MAIN) -> Path:
    """A copy of a checkpoint with the tensors of one file edited; other files are linked."""
    (target / "speech_tokenizer").mkdir(parents=True)
    for path in source.rglob("*.*"):
        if path.relative_to(source) != Path(file):
            (target / path.relative_to(source)).symlink_to(path)
    tensors = load_file(str(source / file))
    edit(tensors)
    save_file(tensors, str(target / file), metadata={"format": "pt"})
    return target


def parts(model: LoadedModel) -> dict[str, nn.Module]:
    named = {
        "talker": model.talker,
        "code_predictor": model.code_predictor,
        "decoder": model.decoder,
        "encoder": model.encoder,
        "speaker_encoder": model.speaker_encoder,
        "durations": model.durations,
    }
    return {name: part for name, part in named.items() if part is not None}


def kept_as_stored(model: LoadedModel, part: nn.Module, name: str) -> bool:
    """Parameters that stay bfloat16: the text embedding, and the linears of talker and code predictor."""
    language = part is model.talker or part is model.code_predictor
    return language and ("text_embedding" in name or name in quantized_names(part))


@pytest.mark.parametrize("like", TINY)
def test_every_kind_loads(like: str, tiny_checkpoint: TinyCheckpoint) -> None:
    model = load_model(tiny_checkpoint(like))
    extra = {"base": {"encoder", "speaker_encoder"}, "embedded": {"durations"}}.get(model.config.kind, set())
    assert set(parts(model)) == {"talker", "code_predictor", "decoder"} | extra
    for part in parts(model).values():
        assert not part.training
        for name, parameter in part.named_parameters():
            assert not parameter.requires_grad
            assert not parameter.is_meta, name
            assert parameter.dtype == (torch.bfloat16 if kept_as_stored(model, part, name) else torch.float32), name


@pytest.mark.parametrize("talker_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codec_dtype", ["float32", "bfloat16"])
def test_dtypes_per_part(talker_dtype: str, codec_dtype: str, tiny_checkpoint: TinyCheckpoint) -> None:
    """Codebook tables, speaker encoder and duration predictor are float32; the text embedding keeps its dtype."""
    for kind in ("tiny-base", "tiny-embedded"):
        dtypes = {"talker_dtype": talker_dtype, "codec_dtype": codec_dtype}
        model = load_model(tiny_checkpoint(kind), **dtypes)  # type: ignore[arg-type]
        for part, module in parts(model).items():
            asked = {"talker": talker_dtype, "code_predictor": talker_dtype}.get(part, codec_dtype)
            if part in ("speaker_encoder", "durations"):
                asked = "float32"
            for name, parameter in module.named_parameters():
                stored = kept_as_stored(model, module, name)
                wanted = "float32" if name.endswith("table") else "bfloat16" if stored else asked
                assert str(parameter.dtype) == f"torch.{wanted}", name


def test_float16_is_refused_with_the_reason(tiny_checkpoint: TinyCheckpoint) -> None:
    for field in ("talker_dtype", "codec_dtype"):
        with pytest.raises(UnsupportedError, match=r"65504.*bfloat16") as caught:
            load_model(tiny_checkpoint("tiny-base"), **{field: "float16"})  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(UnsupportedError, match="int8"):
        load_model(tiny_checkpoint("tiny-base"), talker_dtype="int8")


def test_values_equal_the_file(tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint("tiny-base-wide")
    model, main, codec = load_model(folder), load_file(str(folder / MAIN)), load_file(str(folder / CODEC))
    weight = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(model.talker.get_parameter(weight), main[f"talker.{weight}"])
    weight = "small_to_mtp_projection.bias"
    assert torch.equal(model.code_predictor.get_parameter(weight), main[f"talker.code_predictor.{weight}"].float())
    stem = "quantizer.rvq_rest.vq.layers.14._codebook"
    wanted = codebook_table(codec[f"decoder.{stem}.embedding_sum"], codec[f"decoder.{stem}.cluster_usage"])
    assert torch.equal(model.decoder.get_parameter(f"{stem}.table"), wanted)
    assert model.encoder is not None
    stem = "quantizer.semantic_residual_vector_quantizer.layers.0.codebook"
    wanted = codebook_table(codec[f"encoder.{stem}.embed_sum"], codec[f"encoder.{stem}.cluster_usage"])
    assert torch.equal(model.encoder.get_parameter(f"{stem}.table"), wanted)


def test_all_mismatches_are_listed_at_once(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    def break_three(tensors: Tensors) -> None:
        del tensors["talker.codec_head.weight"], tensors["talker.code_predictor.lm_head.3.weight"]
        tensors["talker.model.norm.weight"] = torch.ones(65)
        tensors["talker.model.layers.2.mlp.up_proj.weight"] = torch.ones(96, 64)
        tensors["lora_A"] = torch.ones(1)

    folder = copy(tiny_checkpoint("tiny-base"), tmp_path / "copy", break_three)
    with pytest.raises(TensorError) as caught:
        load_model(folder)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        "missing: talker.codec_head.weight [3072, 64]",
        "missing: talker.code_predictor.lm_head.3.weight [2048, 64]",
        "unexpected: lora_A [1]",
        "unexpected: talker.model.layers.2.mlp.up_proj.weight [96, 64]",
        "wrong shape: talker.model.norm.weight is [65], must be [64]",
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage", "missing: {}"),
        ("encoder.quantizer.acoustic_residual_vector_quantizer.layers.0.codebook.embed_sum", "missing: {}"),
        ("decoder.decoder.4.block.2.act1.alpha", "missing: {}"),
    ],
)
def test_mismatches_of_the_codec_are_listed(
    name: str, line: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    def drop(tensors: Tensors) -> None:
        del tensors[name]

    folder = copy(tiny_checkpoint("tiny-base"), tmp_path / "copy", drop, CODEC)
    with pytest.raises(TensorError, match=line.format(name.replace(".", r"\."))):
        load_model(folder)


def test_known_unused_tensors_may_be_absent(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    def drop(tensors: Tensors) -> None:
        for name in list(tensors):
            if ("output_proj" in name and name.startswith("encoder.")) or ".layers.30." in name:
                del tensors[name]
        del tensors["decoder.quantizer.rvq_first.input_proj.weight"]

    load_model(copy(tiny_checkpoint("tiny-base"), tmp_path / "copy", drop, CODEC))


def test_speaker_encoder_left_by_fine_tuning(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    def leave(tensors: Tensors) -> None:
        tensors["speaker_encoder.fc.bias"] = torch.ones(64)

    assert load_model(copy(tiny_checkpoint("tiny-custom-voice"), tmp_path / "copy", leave)).speaker_encoder is None


def test_integer_weights_without_quantization_config_are_refused(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    def quantise(tensors: Tensors) -> None:
        tensors["talker.codec_head.weight"] = torch.zeros(3072, 64, dtype=torch.int8)

    folder = copy(tiny_checkpoint("tiny-custom-voice"), tmp_path / "copy", quantise)
    with pytest.raises(TensorError, match=r"unsupported dtype: talker\.codec_head\.weight is I8"):
        load_model(folder)


def test_incomplete_files(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint("tiny-embedded"), folder)
    whole = (folder / MAIN).read_bytes()
    (folder / MAIN).write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        load_model(folder)
    (folder / MAIN).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_model(folder)


def test_sharded_weights(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint("tiny-embedded"), folder)
    tensors = load_file(str(folder / MAIN))
    (folder / MAIN).unlink()
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(where.values()):
        save_file({name: tensors[name] for name in where if where[name] == part}, str(folder / part))
    (folder / f"{MAIN}.index.json").write_text(json.dumps({"weight_map": where}))
    sharded, single = load_model(folder), load_model(tiny_checkpoint("tiny-embedded"))
    for (name, a), (_, b) in zip(sharded.talker.named_parameters(), single.talker.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        load_model(folder)


def test_progress_counts_all_loaded_bytes(tiny_checkpoint: TinyCheckpoint) -> None:
    seen: list[Progress] = []
    folder = tiny_checkpoint("tiny-embedded")
    load_model(folder, progress=seen.append)
    main = [each for each in seen if each.item in ("talker", "talker.code_predictor", "duration")]
    assert main[-1].done == main[-1].total
    with safe_open(str(folder / MAIN), framework="pt") as reader:
        held = sum(reader.get_tensor(name).nbytes for name in reader.keys())  # noqa: SIM118
    assert main[-1].total == held


def measured(folder: Path, warm: Path, *options: str) -> tuple[int, int]:
    """Peak private bytes and weight bytes of a load in a new process, after a small model was loaded."""
    command = [sys.executable, "-m", "tests.weights.measure_load", str(folder), "--warm", str(warm), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found = re.search(r"private bytes (-?\d+), weights (\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]), int(found[2])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_private_memory(tiny_checkpoint: TinyCheckpoint) -> None:
    """At most 1.15 times the weights in their final dtype, and almost nothing if the file has this dtype.

    The negative control copies the files first, and must not pass.
    """
    folder, warm = tiny_checkpoint("tiny-custom-voice"), tiny_checkpoint("tiny-embedded")
    private, weights = measured(folder, warm)
    assert weights > 20_000_000
    assert private <= 1.15 * weights
    private, weights = measured(folder, warm, "--talker-dtype", "bfloat16")
    assert private <= 0.5 * weights
    private, weights = measured(folder, warm, "--copy-first")
    assert private > 1.15 * weights
