"""The commands that list, check and write checkpoints, run through `main` on tiny checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from legato.backends.base import description_of
from legato.backends.fingerprint import numerics_fingerprint
from legato.backends.select import load_backend
from legato.cli import doctor_checks, loading, models
from legato.cli.doctor_checks import Finding
from legato.cli.main import EXIT_FAILED, EXIT_OK, EXIT_USAGE, main
from legato.cli.model_options import ModelOptions
from legato.config.checkpoint import read_model_config
from legato.kernels.build import Unavailable
from legato.kernels.library import library
from legato.verify.compare import Comparison, Tolerance
from legato.verify.results import CheckLine, ExecutionInfo, Kind, Report
from legato.verify.run import GROUPS
from legato.weights.hub import OFFICIAL_MODELS
from legato.weights.loading import LoadedModel
from tests.conftest import TinyCheckpoint

Capture = pytest.CaptureFixture[str]


def test_voices_lists_the_voices_of_the_config(tiny_checkpoint: TinyCheckpoint, capsys: Capture) -> None:
    folder = tiny_checkpoint("tiny-custom-voice")
    assert main(["voices", "-m", str(folder)]) == EXIT_OK
    captured = capsys.readouterr()
    names = [line.split()[0] for line in captured.out.splitlines()[1:]]
    config = json.loads((folder / "config.json").read_text())
    assert names == list(config["talker_config"]["spk_id"])
    assert "sichuan dialect" in captured.out
    assert "languages: auto, chinese, english" in captured.err
    assert "dialect" not in captured.err


@pytest.mark.parametrize(("kind", "remedy"), [("tiny-base", "--clone"), ("tiny-voice-design", "--instruct")])
def test_voices_of_a_model_without_voices_prints_the_remedy(
    tiny_checkpoint: TinyCheckpoint, capsys: Capture, kind: str, remedy: str
) -> None:
    assert main(["voices", "-m", str(tiny_checkpoint(kind))]) == EXIT_OK
    captured = capsys.readouterr()
    assert captured.out == ""
    assert remedy in captured.err


def test_models_lists_every_official_checkpoint(capsys: Capture) -> None:
    assert {known.hub_id for known in models.KNOWN} == set(OFFICIAL_MODELS)
    assert main(["models"]) == EXIT_OK
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("embedded", *OFFICIAL_MODELS))


def test_incomplete_download_is_not_a_local_copy(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(tiny_checkpoint("tiny-base"), tmp_path / "copy")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda _hub_id, name: str(copy / name))
    assert models.local_folder(OFFICIAL_MODELS[0]) == copy
    (copy / "merges.txt").unlink()
    assert models.local_folder(OFFICIAL_MODELS[0]) is None


def test_quantize_writes_a_checkpoint_and_measures_its_error(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: Capture
) -> None:
    source, folder = str(tiny_checkpoint("tiny-embedded")), tmp_path / "int8"
    assert main(["quantize", source, str(folder)]) == EXIT_OK
    assert "int8" in capsys.readouterr().err
    assert read_model_config(folder).quantization == "int8"
    assert main(["quantize", source, str(folder)]) == EXIT_USAGE
    assert "not empty" in capsys.readouterr().err
    assert main(["quantize", source]) == EXIT_USAGE
    assert "--compare-positions" in capsys.readouterr().err
    assert main(["quantize", source, "--compare-positions", "4", "--threads", "1"]) == EXIT_OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == [*map(str, range(len(rows) - 1)), "all"]
    assert all(0 < float(error) < 0.2 and 0.5 < float(same) <= 1 for _, error, same in rows)


def test_quantize_accepts_the_model_as_an_option(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: Capture
) -> None:
    source, folder = str(tiny_checkpoint("tiny-embedded")), tmp_path / "int8"
    assert main(["quantize", "--model", source, str(folder)]) == EXIT_OK
    assert read_model_config(folder).quantization == "int8"
    capsys.readouterr()
    for arguments in (["--model", source, "a", "b"], ["a", "b", "c"], [], [source, str(folder / "config.json")]):
        assert main(["quantize", *arguments]) == EXIT_USAGE
        assert capsys.readouterr().err.startswith("Usage:")


def test_random_checkpoint_is_written_only_to_a_new_or_empty_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "new"
    assert main(["random-checkpoint", "--architecture", "tiny-embedded", str(folder)]) == EXIT_OK
    assert (folder / "config.json").is_file()
    assert main(["random-checkpoint", "--architecture", "tiny-embedded", str(folder)]) == EXIT_USAGE
    assert "error in folder" in capsys.readouterr().err
    assert main(["random-checkpoint", "--architecture", "giant", str(tmp_path / "other")]) == EXIT_USAGE


def test_old_command_name_works_with_a_note(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "new"
    assert main(["synth", "--like", "tiny-embedded", str(folder)]) == EXIT_OK
    assert (folder / "config.json").is_file()
    error = capsys.readouterr().err
    assert "legato: synth is deprecated; use random-checkpoint\n" in error
    assert "legato: --like is deprecated; use --architecture\n" in error


def test_verify_writes_its_reports(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs two groups of checks; tests/verify runs all of them."""
    chosen = {group: GROUPS[group] for group in ("worked convolution example", "cloned voice")}
    monkeypatch.setattr("legato.verify.run.GROUPS", chosen)
    monkeypatch.setattr("legato.cli.loading.set_threads", lambda _threads: 1)
    folder, as_json, page = tiny_checkpoint("tiny-embedded"), tmp_path / "report.json", tmp_path / "report.html"
    outputs = ["--json", str(as_json), "--html", str(page)]
    assert main(["verify", str(folder), "--quick", "--seed", "3", *outputs]) == EXIT_OK
    captured = capsys.readouterr()
    assert "PASSED: 7 of 7 claims hold; 5 of 5 injected faults detected; 1 not applicable" in captured.out
    assert "verify: worked convolution example (1 of 2)" in captured.err
    assert "0.0e+00" in captured.out
    found = json.loads(as_json.read_text())
    assert found["passed"] is True
    assert found["metadata"]["model"] == str(folder)
    assert (found["metadata"]["depth"], found["metadata"]["seed"]) == ("quick", "3")
    assert all(f"legato: {note}\n" in captured.err for note in load_backend(folder).description)
    assert f"legato: loaded {folder} on cpu (" in captured.err
    assert f"backend: {found['metadata']['backend']}\n" in captured.out
    assert found["metadata"]["backend"] == description_of(load_backend(folder))
    assert page.read_text().startswith("<!doctype html>")


def test_verify_fails_if_a_check_fails(
    tiny_checkpoint: TinyCheckpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ExecutionInfo("cpu", "float32", 1, "one stream")
    limit = Tolerance(2e-5, "rounding")
    holding, detected, broken = (
        CheckLine(
            group="codec",
            claim="a claim",
            setting="here",
            execution=where,
            comparison=Comparison(error, error, 1),
            tolerance=limit,
            kind=kind,
        )
        for error, kind in ((1e-6, Kind.CLAIM), (1.0, Kind.CONTROL), (1.0, Kind.CLAIM))
    )
    results = [holding, detected]
    monkeypatch.setattr("legato.verify.run.verify_model", lambda _model, **_options: Report((), tuple(results)))
    monkeypatch.setattr("legato.cli.loading.set_threads", lambda _threads: 1)
    arguments = ["verify", "-m", str(tiny_checkpoint("tiny-embedded"))]
    assert main(arguments) == EXIT_OK
    results.append(broken)
    assert main(arguments) == EXIT_FAILED
    assert "FAILED: 1 of 2 claims hold; 1 of 1 injected faults detected" in capsys.readouterr().out
    results[:] = [holding, replace(detected, comparison=Comparison(0.0, 0.0, 1))]
    assert main(arguments) == EXIT_FAILED
    results[:] = [holding]
    assert main(arguments) == EXIT_FAILED
    assert main([*arguments, "--json", "/no/such/folder/report.json"]) == EXIT_USAGE
    assert main([*arguments, "--device", "cuda:99"]) == EXIT_USAGE


def test_verify_takes_one_model(tiny_checkpoint: TinyCheckpoint, capsys: Capture) -> None:
    folder = str(tiny_checkpoint("tiny-embedded"))
    assert main(["verify", folder, "--model", folder]) == EXIT_USAGE
    assert "as an argument or with --model, not both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dtype", "quant", "formats"),
    [("auto", "none", "fp32"), ("bfloat16", "none", "bf16, fp32 codec"), ("auto", "int8", "int8, fp32 codec")],
)
def test_loaded_line_names_kernels_and_formats(
    tiny_checkpoint: TinyCheckpoint, dtype: str, quant: str, formats: str
) -> None:
    folder = tiny_checkpoint("tiny-embedded")
    options = ModelOptions(str(folder), "cpu", dtype, "auto", None, quant)
    backend = load_backend(folder, dtype=dtype, quant=quant)
    line = loading.loaded_line(options, backend)
    assert line.startswith(f"loaded {folder} on cpu (")
    assert " thread" in line
    assert " kernels" in line
    assert line.endswith(f", {formats})")
    assert loading.loaded_line(replace(options, model="embedded"), backend).startswith("loaded embedded voice on cpu (")


def test_verify_passes_the_cuda_graphs_option(tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[object] = []

    def checked(_model: LoadedModel, *, cuda_graphs: bool, **_options: object) -> Report:
        requested.append(cuda_graphs)
        return Report((), ())

    monkeypatch.setattr("legato.verify.run.verify_model", checked)
    monkeypatch.setattr("legato.cli.loading.set_threads", lambda _threads: 1)
    for flags in ([], ["--no-cuda-graphs"]):
        assert main(["verify", str(tiny_checkpoint("tiny-embedded")), *flags]) == EXIT_FAILED
    assert requested == [True, False]


def test_doctor_reports_the_machine_and_model_requirements(tiny_checkpoint: TinyCheckpoint, capsys: Capture) -> None:
    code = main(["doctor", "-m", str(tiny_checkpoint("tiny-base")), "--max-seq-len", "1000"])
    captured = capsys.readouterr().out
    machine = ("Python", "torch", "CUDA", "CPU", "native kernels", "threads", "memory", "audio files", "sound device")
    for what in (*machine, "KV cache per slot"):
        assert f" {what} " in captured
    assert "ffmpeg only for aac" in captured
    assert "1000 positions" in captured
    fingerprint = numerics_fingerprint(load_backend(tiny_checkpoint("tiny-base")))
    assert f"{fingerprint.digest} (checkpoint {fingerprint.checkpoint[:12]}, " in captured
    assert code == (EXIT_FAILED if "MISSING" in captured else EXIT_OK)


def test_doctor_does_not_load_a_model_that_does_not_fit(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "available_memory_bytes", lambda: 2**30)
    found = doctor_checks.fingerprint_finding(tiny_checkpoint("tiny-base"), 2**30)
    assert found.found == "not computed: loading takes up to 2.0 GiB of memory"


def test_doctor_fails_if_a_requirement_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    lacking = [Finding("missing", "torch", "not installed", "pip install torch")]
    monkeypatch.setattr("legato.cli.doctor.machine_findings", lambda: lacking)
    assert main(["doctor"]) == EXIT_FAILED
    assert "torch: pip install torch" in capsys.readouterr().out
    monkeypatch.setattr("legato.cli.doctor.machine_findings", lambda: [Finding("optional", "CUDA", "no device")])
    assert main(["doctor"]) == EXIT_OK


def test_doctor_reports_native_kernels_and_why_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, codec = "legato.kernels.library.library", "legato.kernels.codec_library.codec_library"
    monkeypatch.setattr(layers, lambda: SimpleNamespace(amx=False))
    monkeypatch.setattr(codec, lambda: SimpleNamespace(amx=True))
    both = "language model: native; codec: native (AMX)"
    assert doctor_checks.kernel_findings() == [Finding("ok", "native kernels", both)]
    monkeypatch.setattr(codec, lambda: Unavailable("cc failed: out of something"))
    (found,) = doctor_checks.kernel_findings()
    one = "language model: native; codec: PyTorch (slower): cc failed: out of something"
    assert found == Finding("optional", "native kernels", one)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(layers, library.__wrapped__)
    (found,) = doctor_checks.kernel_findings()
    assert (found.state, "apt-get install gcc" in found.remedy) == ("optional", "no C compiler" in found.found)


def test_missing_embedded_voice_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "embedded_folder", lambda: None)
    assert doctor_checks.embedded_finding().state == "missing"
    monkeypatch.setattr(doctor_checks, "embedded_folder", lambda: Path("/voice"))
    assert doctor_checks.embedded_finding() == Finding("ok", "embedded voice", "/voice")
