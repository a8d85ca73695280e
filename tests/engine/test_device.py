"""Complete streams on a CUDA device: same codes and samples as on the CPU, with and without CUDA graphs.

Runs on a fake CUDA device, which detects mixed devices and values frozen by capture, and on a real one if there is one.
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
from legato.backends.cuda_capture import Captured, GraphRecorder
from legato.backends.select import build_backend
from legato.backends.torch import TorchBackend
from legato.config.engine import EngineConfig
from legato.engine.engine import Engine
from legato.errors import UnsupportedError
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.talker.backbone import Talker
from legato.models.talker.embed import next_input
from legato.verify.run import verify_model
from legato.verify.target import QUICK
from legato.weights.loading import LoadedModel, load_model
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
    config = EngineConfig(max_num_seqs=2, kv_slots=2, max_seq_len=64, deterministic=deterministic, cuda_graphs=graphs)
    backend = TorchBackend(LoadedModel(Path(), tiny_config(), talker, predictor, decoder))
    return Engine(backend, LetterFrontEnd(), config, poison=True)


def received(on: Cuda | None = None, *, graphs: bool = True, deterministic: bool = False) -> list[bytes]:
    """Audio of three clients with two slots, on the CPU or on the device `on`; a fourth is cancelled."""
    with on() if on else nullcontext():
        device_engine = engine("cuda" if on else "cpu", graphs=graphs, deterministic=deterministic)
        gone = speak(device_engine.submit(request(seed=9, max_frames=50)))
        handles = [speak(device_engine.submit(request(seed=seed, max_frames=3 + seed))) for seed in range(3)]
        gone.cancel()
        got = [read(handle) for handle in handles]
        device_engine.close()
        assert device_engine.kv_pool.all_free
        assert device_engine.codec_pool.all_free
    return got


def near(one: list[bytes], other: list[bytes]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.allclose(np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4"), atol=1e-4) for a, b in pairs)


def test_device_output_equals_cpu_output_with_and_without_graphs(cuda: Cuda) -> None:
    wanted = received()
    assert near(received(cuda, graphs=False), wanted)
    assert near(received(cuda), wanted)


def test_graphs_are_batch_invariant_in_deterministic_mode(cuda: Cuda) -> None:
    batched = received(cuda, deterministic=True)
    with cuda():
        device_engine = engine("cuda", deterministic=True)
        alone = [read(speak(device_engine.submit(request(seed=seed, max_frames=3 + seed)))) for seed in range(3)]
        device_engine.close()
    assert alone == batched


def test_frame_synchronizes_only_for_codes_and_samples() -> None:
    counts = []
    with fake_cuda():
        for frames in (2, 5):
            device_engine = engine("cuda")
            before = len(waits())
            read(speak(device_engine.submit(request(max_frames=frames, packets=(1,)))))
            device_engine.close()
            counts.append(Counter(waits()[before:]))
    more = counts[1] - counts[0]
    # Back come codes and whether they are finite, twice, and samples. There go frame, token and position; frame number,
    # end allowed, four settings and noise; first code, three settings and noise; codes and length of the window; and
    # the slots of talker and codec.
    back, there, slots = 5, 3 + 7 + 5 + 2, 1 + 1
    assert (more["copy_"], more["to"] + more["_to_copy"]) == (3 * there, 3 * (back + slots))
    assert set(more) <= {"copy_", "to", "_to_copy"}


@pytest.mark.parametrize("kind", ["tiny-base", "tiny-embedded"])
def test_all_parts_of_checkpoint_run_on_their_device(tiny_checkpoint: TinyCheckpoint, kind: str, cuda: Cuda) -> None:
    samples = []
    for device in ("cpu", "cuda"):
        with cuda() if device == "cuda" else nullcontext(), torch.inference_mode():
            tts = legato.load(tiny_checkpoint(kind), device=device, dtype="float32", max_seq_len=128)
            noise = np.random.default_rng(0).standard_normal(24000) * 0.1
            clone = CloneReference(noise.astype(np.float32), "hello there", 0.0) if kind == "tiny-base" else None
            voice = "" if clone else tts.voices()[0].name
            samples.append(tts.say("Hi.", voice=voice, clone=clone, seed=1, max_frames=3).samples)
            tts.close()
    assert len(samples[0]) > 0
    assert np.allclose(samples[0], samples[1], atol=1e-4)


def test_reference_on_wrong_device_is_detected(tiny_checkpoint: TinyCheckpoint) -> None:
    with fake_cuda(), torch.inference_mode():
        model = load_model(tiny_checkpoint("tiny-base"), device="cuda")
        assert model.encoder is not None
        samples = torch.zeros(1, 3840)
        assert model.encoder.encode(samples.to("cuda"))[0].shape[1] == 2
        with pytest.raises(DeviceMixError):
            model.encoder.encode(samples)


def test_uncapturable_step_fails_at_start_and_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(talker: Talker, predictor: CodePredictor, frames: Tensor, text: Tensor) -> Tensor:
        x = next_input(talker, predictor, frames, text)
        return x * int(frames.shape[0]) if bool(x.isfinite().all()) else x

    monkeypatch.setattr("legato.backends.torch.next_input", impatient)
    with fake_cuda(), pytest.raises(UnsupportedError, match=r"a talker step of 1 rows could not .*--no-cuda-graphs"):
        engine("cuda")


def test_capture_of_synchronizing_function_is_refused() -> None:
    index = torch.device("cuda", 0)
    with fake_cuda(), torch.inference_mode(), pytest.raises(UnsupportedError, match=r"a test could not be") as refused:
        Captured(GraphRecorder(index), "a test", lambda x: (x * float(x.sum()),), (torch.ones(2, device=index),))
    assert refused.value.field == "cuda_graphs"


def test_verify_passes_on_a_device(tiny_checkpoint: TinyCheckpoint, cuda: Cuda) -> None:
    depth = replace(QUICK, talker_positions=12, predictor_rows=3)
    few = ("talker with cache", "code predictor", "CUDA graphs", "worked convolution example")
    groups = () if cuda is nullcontext else few  # on the fake device all groups take a minute
    with cuda(), torch.inference_mode():
        model = load_model(tiny_checkpoint("tiny-base"), device="cuda")
        report = verify_model(build_backend(model), name="tiny-base", depth=depth, groups=groups)
    assert report.passed, [line for line in report.lines if line.bad]
