"""Captured steps, samples, frames and codec windows equal direct calls, for rows in any slots at any positions.

On the fake CUDA device (`tests/fake_cuda.py`), which needs no GPU, and on a real one where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from legato.backends import cuda_graphs as graphs
from legato.backends.base import FirstCodeInputs, FrameInputs
from legato.backends.cuda_capture import GraphRecorder, fitting, sizes
from legato.backends.cuda_graphs import (
    CapturedSteps,
    CapturedWindows,
    CudaGraphsBackend,
    EngineState,
    spare_slots,
)
from legato.backends.torch import TorchBackend
from legato.config.engine import EngineConfig
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.engine.leases import CodecLease
from legato.errors import StateError
from legato.models.codec.state import CodecRows, CodecStatePool
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache
from legato.types import SamplingParams, SequenceId, StreamId
from legato.weights.loading import LoadedModel
from tests.engine.conftest import Cuda
from tests.engine.harness import GREEDY, WARM
from tests.engine.tiny import tiny_config, tiny_decoder, tiny_predictor, tiny_talker
from tests.fake_cuda import on_device
from tests.models.tiny_talker import CODEBOOKS, CODES

SLOTS, POSITIONS = 3, 16
SHARP = SamplingParams(
    temperature=0.3,
    top_k=5,
    top_p=0.7,
    repetition_penalty=1.3,
    predictor_temperature=1.4,
    predictor_top_k=3,
    predictor_top_p=0.6,
)
Settings = Sequence[SamplingParams]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, cuda: Cuda) -> Iterator[None]:
    monkeypatch.setattr(graphs, "LEAST_SPAN", 4)
    with cuda(), torch.inference_mode():
        yield


def device_backend() -> TorchBackend:
    """The tiny model on the device."""
    talker, predictor, decoder = deepcopy(tiny_talker()), deepcopy(tiny_predictor()), deepcopy(tiny_decoder())
    for module in (talker, predictor, decoder):
        on_device(module)
    return TorchBackend(
        LoadedModel(
            folder=Path(),
            config=tiny_config(),
            talker=talker,
            code_predictor=predictor,
            decoder=decoder,
        )
    )


def called() -> tuple[TorchBackend, KVPool]:
    """A backend, and a cache filled with reproducible noise."""
    cache = TalkerCache.allocate(tiny_config().talker.stack, SLOTS + 1, POSITIONS, torch.float32, "cuda")
    noise = torch.randn(cache.keys.shape, generator=torch.Generator().manual_seed(5))
    cache.keys.copy_(noise)
    cache.values.copy_(noise.flip(-1))
    return device_backend(), KVPool(cache, padding_slots=1)


def state_of(backend: TorchBackend, pool: KVPool, codec: CodecPool | None = None) -> EngineState:
    codec = codec or codec_pool(backend)
    return EngineState(pool.cache, codec.storage, pool.padding_slot, codec.padding_slot)


def captured_steps() -> tuple[CapturedSteps, KVPool]:
    backend, pool = called()
    return CapturedSteps(GraphRecorder(backend.input_device), backend, state_of(backend, pool), sizes(SLOTS)), pool


def filled(values: Tensor, rows: int, filler: int = 0) -> Tensor:
    """`values` on the device, padded with idle rows to the captured number."""
    rest = torch.full((rows - len(values), *values.shape[1:]), filler, dtype=values.dtype)
    return torch.cat([values, rest]).to("cuda")


def test_captured_talker_steps_equal_calls_and_write_no_other_slot() -> None:
    chance = torch.Generator().manual_seed(2)
    (graph, pool), (backend, plain) = captured_steps(), called()
    for trial in range(8):
        rows = 1 + trial % SLOTS
        slots = torch.randperm(SLOTS, generator=chance)[:rows]
        positions = torch.randint(POSITIONS, (rows,), generator=chance)
        frames = torch.randint(CODES, (rows, CODEBOOKS), generator=chance)
        tokens = torch.randint(40, (rows, 1), generator=chance)
        span = int(positions.max()) + 1
        leased = KVRows(slots.to("cuda"))
        got = graph.decode_step(frames, tokens, leased, positions, span=span)
        size = fitting(sizes(SLOTS), rows)
        wanted = backend.decode_step(
            plain.cache,
            filled(frames, size),
            filled(tokens, size),
            KVRows(filled(slots, size, plain.padding_slot)),
            filled(positions, size),
            span=fitting((4, 8, 16), span),
        )
        assert got.cpu().equal(wanted[:rows].cpu())
        for ours, theirs in ((pool.cache.keys, plain.cache.keys), (pool.cache.values, plain.cache.values)):
            assert ours[:, :SLOTS].cpu().equal(theirs[:, :SLOTS].cpu())


def test_span_and_idle_rows_change_a_row_by_rounding_only() -> None:
    (graph, _), (backend, pool) = captured_steps(), called()
    frames, tokens, positions = torch.full((1, CODEBOOKS), 3), torch.tensor([[7]]), torch.tensor([4])
    slot = KVRows(torch.tensor([1], device="cuda"))
    got = graph.decode_step(frames, tokens, slot, positions, span=5).cpu()
    on_cuda = [each.to("cuda") for each in (frames, tokens, positions)]
    wanted = backend.decode_step(pool.cache, on_cuda[0], on_cuda[1], slot, on_cuda[2], span=5).cpu()
    assert torch.allclose(got, wanted, atol=1e-5)


def first_codes(chance: torch.Generator, settings: Settings) -> FirstCodeInputs:
    rows, how, talker = len(settings), SamplingRows.of(settings), tiny_config().talker
    return FirstCodeInputs(
        hidden=torch.randn(rows, talker.stack.hidden_size, generator=chance),
        seen=torch.rand(rows, talker.vocab_size, generator=chance) < 0.3,
        frames=torch.randint(5, (rows,), generator=chance),
        allow_eos=torch.rand(rows, generator=chance) < 0.5,
        temperature=how.first.temperature,
        top_k=how.first.top_k,
        top_p=how.first.top_p,
        repetition_penalty=how.repetition_penalty,
        uniform=torch.rand(rows, generator=chance, dtype=torch.float64),
    )


def frames_of(chance: torch.Generator, settings: Settings) -> FrameInputs:
    rows, how = len(settings), SamplingRows.of(settings).residual
    return FrameInputs(
        hidden=torch.randn(rows, tiny_config().talker.stack.hidden_size, generator=chance),
        first_code=torch.randint(CODES, (rows,), generator=chance),
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        noise=torch.rand(rows, CODEBOOKS, generator=chance, dtype=torch.float64),
    )


MIXES: tuple[Settings, ...] = ((WARM,), (GREEDY, WARM), (WARM, SHARP, GREEDY), (SHARP,), (SHARP, SHARP))


def draws_agree(change: Callable[[Tensor], Tensor] = lambda value: value) -> list[bool]:
    """Whether captured sampling gives the codes of direct calls, for random states and mixed settings.

    `change` is done to the temperatures that the recording is given: a fault to be caught.
    """
    chance, (graph, _), (backend, _) = torch.Generator().manual_seed(3), captured_steps(), called()
    agree = []
    for settings in MIXES * 3:
        first, frame = first_codes(chance, settings), frames_of(chance, settings)
        got_first = graph.sample_first(first._replace(temperature=change(first.temperature)))
        got_frame = graph.predict_frame(frame._replace(temperature=change(frame.temperature)))
        wanted_first = backend.sample_first(FirstCodeInputs(*(each.to("cuda") for each in first)))
        wanted_frame = backend.predict_frame(FrameInputs(*(each.to("cuda") for each in frame)))
        for got, wanted in ((got_first, wanted_first), (got_frame, wanted_frame)):
            agree.append(got.codes.tolist() == wanted.codes.tolist() and got.finite.tolist() == wanted.finite.tolist())
    return agree


def test_captured_sampling_uses_the_settings_of_each_row() -> None:
    assert all(draws_agree())


def test_control_settings_fixed_by_the_capture() -> None:
    assert not all(draws_agree(torch.ones_like))  # the settings of the idle rows at capture


def test_non_finite_row_does_not_affect_others() -> None:
    graph, _ = captured_steps()
    given = first_codes(torch.Generator().manual_seed(4), (WARM, WARM))
    given.hidden[1] = float("nan")
    assert graph.sample_first(given).finite.tolist() == [True, False]


def codec_pool(backend: TorchBackend, padding_slots: int = 1) -> CodecPool:
    return CodecPool(
        CodecStatePool(backend.decoder.initial_history(SLOTS + padding_slots)), padding_slots=padding_slots
    )


def test_captured_codec_windows_equal_calls_over_whole_streams() -> None:
    chance, (backend, pool) = torch.Generator().manual_seed(6), called()
    ours_pool, plain_pool = codec_pool(backend), codec_pool(backend)
    graph = CapturedWindows(
        GraphRecorder(backend.input_device), backend, state_of(backend, pool, ours_pool), sizes(SLOTS)
    )
    leases = [(ours_pool.acquire(StreamId(index)), plain_pool.acquire(StreamId(index))) for index in range(SLOTS)]
    for trial in range(6):
        rows = 1 + trial % SLOTS
        chosen = torch.randperm(SLOTS, generator=chance)[:rows].tolist()
        counts = torch.randint(1, 10 if trial == 5 else 9, (rows,), generator=chance).tolist()
        codes = torch.randint(CODES, (rows, max(counts), CODEBOOKS), generator=chance)
        ours: list[CodecLease] = [leases[index][0] for index in chosen]
        theirs = [leases[index][1] for index in chosen]
        got = graph.decode(ours_pool.rows(ours), codes, torch.tensor(counts)).cpu()
        counts_there = torch.tensor(counts).to("cuda")
        rows_there = plain_pool.rows(theirs)
        wanted = backend.decode_codec_in_place(plain_pool.storage, rows_there, codes.to("cuda"), counts_there).cpu()
        frame = wanted.shape[1] // codes.shape[1]
        for row, count in enumerate(counts):
            assert torch.allclose(got[row, : count * frame], wanted[row, : count * frame], atol=1e-5)
    ours_after = ours_pool.gather([one for one, _ in leases]).tensors()
    theirs_after = plain_pool.gather([other for _, other in leases]).tensors()
    assert ours_after[0].tolist() == theirs_after[0].tolist()  # frames so far
    assert all(
        torch.allclose(one.cpu(), other.cpu(), atol=1e-5) for one, other in zip(ours_after, theirs_after, strict=True)
    )


def test_padding_slots_are_never_leased_and_required() -> None:
    backend, pool = called()
    leases = [pool.acquire(SequenceId(index)) for index in range(SLOTS)]
    assert pool.free == 0
    assert pool.padding_slot not in [lease.slot for lease in leases]
    codec = codec_pool(backend)
    taken = [codec.acquire(StreamId(index)).slot for index in range(SLOTS)]
    assert codec.padding_slot not in taken
    for without in (KVPool(pool.cache), codec_pool(backend, padding_slots=0)):
        with pytest.raises(StateError, match="without padding slots"):
            _ = without.padding_slot


def test_graphs_are_captured_on_cuda_only_and_bound_to_one_engine() -> None:
    config = EngineConfig(max_num_seqs=SLOTS, kv_slots=SLOTS, max_seq_len=POSITIONS, deterministic=True)
    assert [spare_slots(config, torch.device(index)) for index in ("cuda", "cpu", "meta")] == [1, 0, 0]
    assert spare_slots(EngineConfig(cuda_graphs=False), torch.device("cuda")) == 0
    inner, pool = called()
    codec = codec_pool(inner)
    backend = CudaGraphsBackend(inner, state_of(inner, pool, codec), config)
    assert backend.decodes_in_place
    assert backend.description[-1] == "CUDA graphs"
    other, ones = called()[1], torch.ones(1, dtype=torch.int64)
    slot = KVRows(torch.tensor([0], device="cuda"))
    with pytest.raises(StateError, match="another KV cache"):
        backend.decode_step(other.cache, ones[:, None], ones[:, None], slot, ones, span=1)
    with pytest.raises(StateError, match="other codec states"):
        backend.decode_codec_in_place(codec_pool(inner).storage, CodecRows.of([0]), ones[:, None, None], ones)
