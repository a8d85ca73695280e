"""Whole speech on a device: the same codes and samples as on the CPU, recorded or called, alone or in company.

On a device in name alone, which finds every tensor of the host that meets one of the device and every value that a
recording holds fast, and on a real one where there is one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import legato
from legato.api import CloneReference
from legato.config.engine import EngineConfig
from legato.engine.captured import Captured, Recorder
from legato.engine.engine import Engine
from legato.errors import UnsupportedError
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.load import LoadedModel, load_model
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import next_input
from legato.verify.run import verify_model
from legato.verify.subject import QUICK
from tests.conftest import TinyCheckpoint
from tests.engine.clients import LetterFrontEnd, read, request, speak
from tests.engine.conftest import Cuda
from tests.engine.tiny import tiny_config, tiny_decoder, tiny_predictor, tiny_talker
from tests.fake_cuda import DeviceMixError, fake_cuda, on_device, waits


def engine(device: str, *, graphs: bool = True, deterministic: bool = False) -> Engine:
    talker, predictor, decoder = deepcopy(tiny_talker()), deepcopy(tiny_predictor()), deepcopy(tiny_decoder())
    if device == "cuda":
        for module in (talker, predictor, decoder):
            on_device(module)
    config = EngineConfig(streams=2, kv_slots=2, positions=64, deterministic=deterministic, graphs=graphs)
    model = LoadedModel(Path(), tiny_config(), talker, predictor, decoder, None, None, None)
    return Engine(model, LetterFrontEnd(), config, poison=True)


def heard(on: Cuda | None = None, *, graphs: bool = True, deterministic: bool = False) -> list[bytes]:
    """What three clients got of two slots of the CPU, or `on` a device; a fourth was cancelled."""
    with on() if on else nullcontext():
        speaker = engine("cuda" if on else "cpu", graphs=graphs, deterministic=deterministic)
        gone = speak(speaker.submit(request(seed=9, max_frames=50)))
        handles = [speak(speaker.submit(request(seed=seed, max_frames=3 + seed))) for seed in range(3)]
        gone.cancel()
        got = [read(handle) for handle in handles]
        speaker.close()
        assert speaker.kv_pool.balanced
        assert speaker.codec_pool.balanced
    return got


def near(one: list[bytes], other: list[bytes]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.allclose(np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4"), atol=1e-4) for a, b in pairs)


def test_an_engine_on_a_device_speaks_as_on_the_cpu_recorded_or_called(cuda: Cuda) -> None:
    wanted = heard()
    assert near(heard(cuda, graphs=False), wanted)
    assert near(heard(cuda), wanted)


def test_in_deterministic_mode_recordings_are_the_same_alone_and_in_company(cuda: Cuda) -> None:
    company = heard(cuda, deterministic=True)
    with cuda():
        speaker = engine("cuda", deterministic=True)
        alone = [read(speak(speaker.submit(request(seed=seed, max_frames=3 + seed)))) for seed in range(3)]
        speaker.close()
    assert alone == company


def test_a_frame_waits_for_its_codes_and_samples_and_for_nothing_else() -> None:
    counts = []
    with fake_cuda():
        for frames in (2, 5):
            speaker = engine("cuda")
            before = len(waits())
            read(speak(speaker.submit(request(max_frames=frames, packets=(1,)))))
            speaker.close()
            counts.append(Counter(waits()[before:]))
    more = counts[1] - counts[0]
    # Back come codes and whether they are finite, twice, and samples. There go frame, token and position; frame number,
    # end allowed, four settings and noise; first code, three settings and noise; codes and length of the window; and
    # the slots of talker and codec.
    back, there, slots = 5, 3 + 7 + 5 + 2, 1 + 1
    assert (more["copy_"], more["to"] + more["_to_copy"]) == (3 * there, 3 * (back + slots))
    assert set(more) <= {"copy_", "to", "_to_copy"}


@pytest.mark.parametrize("kind", ["tiny-base", "tiny-embedded"])
def test_every_part_of_a_checkpoint_keeps_to_its_device(tiny_checkpoint: TinyCheckpoint, kind: str, cuda: Cuda) -> None:
    said = []
    for device in ("cpu", "cuda"):
        with cuda() if device == "cuda" else nullcontext(), torch.inference_mode():
            tts = legato.load(tiny_checkpoint(kind), device=device, dtype="float32", positions=128)
            noise = np.random.default_rng(0).standard_normal(24000) * 0.1
            clone = CloneReference(noise.astype(np.float32), "hello there", 0.0) if kind == "tiny-base" else None
            voice = "" if clone else tts.voices()[0].name
            said.append(tts.say("Hi.", voice=voice, clone=clone, seed=1, max_frames=3).samples)
            tts.close()
    assert len(said[0]) > 0
    assert np.allclose(said[0], said[1], atol=1e-4)


def test_a_recording_of_the_host_would_be_found_out(tiny_checkpoint: TinyCheckpoint) -> None:
    with fake_cuda(), torch.inference_mode():
        model = load_model(tiny_checkpoint("tiny-base"), device="cuda")
        assert model.encoder is not None
        samples = torch.zeros(1, 3840)
        assert model.encoder.encode(samples.to("cuda"))[0].shape[1] == 2
        with pytest.raises(DeviceMixError):
            model.encoder.encode(samples)


def test_what_cannot_be_recorded_ends_the_start_with_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(talker: Talker, predictor: CodePredictor, frames: Tensor, text: Tensor) -> Tensor:
        x = next_input(talker, predictor, frames, text)
        return x * int(frames.shape[0]) if bool(x.isfinite().all()) else x

    monkeypatch.setattr("legato.engine.steps.next_input", impatient)
    with fake_cuda(), pytest.raises(UnsupportedError, match=r"a talker step of 1 rows could not .*--no-graphs"):
        engine("cuda")


def test_a_function_that_makes_the_host_wait_is_refused_with_the_switch() -> None:
    at = torch.device("cuda", 0)
    with fake_cuda(), torch.inference_mode(), pytest.raises(UnsupportedError, match=r"a test could not be") as refused:
        Captured(Recorder(at), "a test", lambda x: (x * float(x.sum()),), (torch.ones(2, device=at),))
    assert refused.value.field == "graphs"


def test_verify_holds_on_a_device(tiny_checkpoint: TinyCheckpoint, cuda: Cuda) -> None:
    depth = replace(QUICK, talker_positions=12, predictor_rows=3)
    few = ("talker with cache", "code predictor", "recorded work", "worked convolution example")
    groups = () if cuda is nullcontext else few  # all of them pass in name alone, too, and take a minute
    with cuda(), torch.inference_mode():
        model = load_model(tiny_checkpoint("tiny-base"), device="cuda")
        report = verify_model(model, name="tiny-base", depth=depth, groups=groups)
    assert report.passed, [line for line in report.lines if line.bad]
