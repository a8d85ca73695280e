"""The commands that list, check and write: on tiny checkpoints, through the same door as a user's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from legato.cli import doctor_checks, models
from legato.cli.doctor_checks import Finding
from legato.cli.main import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, main
from legato.config.checkpoint import read_model_config
from legato.engine.notes import computed_by, notes_of
from legato.models.load import LoadedModel, load_model
from legato.models.locate import OFFICIAL_MODELS
from legato.models.native.library import Missing, library
from legato.verify.compare import Comparison
from legato.verify.lines import CheckLine, Kind, Where
from legato.verify.run import GROUPS, Report
from legato.verify.tolerance import Tolerance
from tests.conftest import TinyCheckpoint

Capture = pytest.CaptureFixture[str]


def test_voices_are_those_of_the_config(tiny_checkpoint: TinyCheckpoint, capsys: Capture) -> None:
    folder = tiny_checkpoint("tiny-custom-voice")
    assert main(["voices", "-m", str(folder)]) == EXIT_OK
    told = capsys.readouterr()
    names = [line.split()[0] for line in told.out.splitlines()[1:]]
    config = json.loads((folder / "config.json").read_text())
    assert names == list(config["talker_config"]["spk_id"])
    assert "sichuan dialect" in told.out
    assert "languages: auto, chinese, english" in told.err
    assert "dialect" not in told.err


@pytest.mark.parametrize(("kind", "way"), [("tiny-base", "--clone"), ("tiny-voice-design", "--instruct")])
def test_a_model_without_voices_says_how_to_get_one(
    tiny_checkpoint: TinyCheckpoint, capsys: Capture, kind: str, way: str
) -> None:
    assert main(["voices", "-m", str(tiny_checkpoint(kind))]) == EXIT_OK
    told = capsys.readouterr()
    assert told.out == ""
    assert way in told.err


def test_models_lists_every_official_one(capsys: Capture) -> None:
    assert {known.hub_id for known in models.KNOWN} == set(OFFICIAL_MODELS)
    assert main(["models"]) == EXIT_OK
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("embedded", *OFFICIAL_MODELS))


def test_a_model_counts_as_here_when_it_is_complete(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(tiny_checkpoint("tiny-base"), tmp_path / "copy")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda _hub_id, name: str(copy / name))
    assert models.local_folder(OFFICIAL_MODELS[0]) == copy
    (copy / "merges.txt").unlink()
    assert models.local_folder(OFFICIAL_MODELS[0]) is None


def test_quantize_writes_a_checkpoint_and_says_what_it_changes(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: Capture
) -> None:
    source, folder = str(tiny_checkpoint("tiny-embedded")), tmp_path / "int8"
    assert main(["quantize", source, str(folder)]) == EXIT_OK
    assert "int8" in capsys.readouterr().err
    assert read_model_config(folder).quantization == "int8"
    assert main(["quantize", source, str(folder)]) == EXIT_REFUSED
    assert "not empty" in capsys.readouterr().err
    assert main(["quantize", source]) == EXIT_REFUSED
    assert "--changes" in capsys.readouterr().err
    assert main(["quantize", source, "--changes", "4", "--threads", "1"]) == EXIT_OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == [*map(str, range(len(rows) - 1)), "all"]
    assert all(0 < float(error) < 0.2 and 0.5 < float(same) <= 1 for _, error, same in rows)


def test_synth_writes_a_checkpoint_and_refuses_a_folder_in_use(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "new"
    assert main(["synth", "--like", "tiny-embedded", str(folder)]) == EXIT_OK
    assert (folder / "config.json").is_file()
    assert main(["synth", "--like", "tiny-embedded", str(folder)]) == EXIT_REFUSED
    assert "error in folder" in capsys.readouterr().err
    assert main(["synth", "--like", "giant", str(tmp_path / "other")]) == EXIT_REFUSED


def test_verify_runs_on_a_checkpoint_and_writes_its_reports(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of the real run; all of them are tested with `legato.verify`."""
    chosen = {group: GROUPS[group] for group in ("worked convolution example", "cloned voice")}
    monkeypatch.setattr("legato.verify.run.GROUPS", chosen)
    monkeypatch.setattr("legato.cli.verify.set_threads", lambda _threads: 1)
    folder, as_json, page = tiny_checkpoint("tiny-embedded"), tmp_path / "report.json", tmp_path / "report.html"
    outputs = ["--json", str(as_json), "--html", str(page)]
    assert main(["verify", str(folder), "--quick", "--seed", "3", *outputs]) == EXIT_OK
    told = capsys.readouterr()
    assert "PASSED: 7 of 7 claims hold; 5 of 5 controls caught; 1 not applicable" in told.out
    assert "verify: worked convolution example (1 of 2)" in told.err
    assert "0.0e+00" in told.out
    found = json.loads(as_json.read_text())
    assert found["passed"] is True
    assert found["facts"]["model"] == str(folder)
    assert (found["facts"]["depth"], found["facts"]["seed"]) == ("quick", "3")
    assert all(f"legato: {note}\n" in told.err for note in notes_of(load_model(folder)))
    assert f"computed by: {found['facts']['computed by']}\n" in told.out
    assert found["facts"]["computed by"] == computed_by(load_model(folder))
    assert page.read_text().startswith("<!doctype html>")


def test_verify_fails_with_its_checks(
    tiny_checkpoint: TinyCheckpoint, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Where("cpu", "float32", 1, "one stream")
    limit = Tolerance(2e-5, "rounding")
    holds, caught, breaks = (
        CheckLine("codec", "a claim", "here", where, Comparison(error, error, 1), limit, kind)
        for error, kind in ((1e-6, Kind.CLAIM), (1.0, Kind.CONTROL), (1.0, Kind.CLAIM))
    )
    results = [holds, caught]
    monkeypatch.setattr("legato.verify.run.verify_model", lambda _model, **_how: Report((), tuple(results)))
    monkeypatch.setattr("legato.cli.verify.set_threads", lambda _threads: 1)
    arguments = ["verify", "-m", str(tiny_checkpoint("tiny-embedded"))]
    assert main(arguments) == EXIT_OK
    results.append(breaks)
    assert main(arguments) == EXIT_FAILED
    assert "FAILED: 1 of 2 claims hold; 1 of 1 controls caught" in capsys.readouterr().out
    results[:] = [holds, replace(caught, comparison=Comparison(0.0, 0.0, 1))]
    assert main(arguments) == EXIT_FAILED
    results[:] = [holds]
    assert main(arguments) == EXIT_FAILED
    assert main([*arguments, "--json", "/no/such/folder/report.json"]) == EXIT_REFUSED
    assert main([*arguments, "--device", "cuda:99"]) == EXIT_REFUSED


def test_verify_hands_on_whether_work_is_recorded(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def checked(_model: LoadedModel, *, graphs: bool, **_how: object) -> Report:
        asked.append(graphs)
        return Report((), ())

    monkeypatch.setattr("legato.verify.run.verify_model", checked)
    monkeypatch.setattr("legato.cli.verify.set_threads", lambda _threads: 1)
    for flags in ([], ["--no-graphs"]):
        assert main(["verify", str(tiny_checkpoint("tiny-embedded")), *flags]) == EXIT_FAILED
    assert asked == [True, False]


def test_doctor_tells_what_is_there_and_what_a_model_needs(tiny_checkpoint: TinyCheckpoint, capsys: Capture) -> None:
    code = main(["doctor", "-m", str(tiny_checkpoint("tiny-base")), "--positions", "1000"])
    told = capsys.readouterr().out
    whats = ("Python", "torch", "CUDA", "CPU", "compiled code", "threads", "memory", "audio files", "sound device")
    for what in (*whats, "one slot"):
        assert f" {what} " in told
    assert "ffmpeg for aac alone" in told
    assert "1000 positions" in told
    assert code == (EXIT_FAILED if "MISSING" in told else EXIT_OK)


def test_doctor_fails_where_nothing_can_be_spoken(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    lacking = [Finding("missing", "torch", "not installed", "pip install torch")]
    monkeypatch.setattr("legato.cli.doctor.machine_findings", lambda: lacking)
    assert main(["doctor"]) == EXIT_FAILED
    assert "torch: pip install torch" in capsys.readouterr().out
    monkeypatch.setattr("legato.cli.doctor.machine_findings", lambda: [Finding("optional", "CUDA", "no device")])
    assert main(["doctor"]) == EXIT_OK


def test_what_can_be_compiled_is_told_with_the_reason_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, codec = "legato.models.native.library.library", "legato.models.native.codec_library.codec_library"
    monkeypatch.setattr(layers, lambda: SimpleNamespace(tiles=False))
    monkeypatch.setattr(codec, lambda: SimpleNamespace(tiles=True))
    both = "layers compiled for this CPU; codec compiled for this CPU, with its matrix tiles"
    assert doctor_checks.compiled_findings() == [Finding("ok", "compiled code", both)]
    monkeypatch.setattr(codec, lambda: Missing("cc failed: out of something"))
    (found,) = doctor_checks.compiled_findings()
    one = "layers compiled for this CPU; codec by torch, slower than compiled: cc failed: out of something"
    assert found == Finding("optional", "compiled code", one)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(layers, library.__wrapped__)
    (found,) = doctor_checks.compiled_findings()
    assert (found.state, "apt-get install gcc" in found.remedy) == ("optional", "no C compiler" in found.found)


def test_a_missing_voice_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "embedded_folder", lambda: None)
    assert doctor_checks.embedded_finding().state == "missing"
    monkeypatch.setattr(doctor_checks, "embedded_folder", lambda: Path("/voice"))
    assert doctor_checks.embedded_finding() == Finding("ok", "embedded voice", "/voice")
