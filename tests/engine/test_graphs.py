"""A recorded step, draw, frame and window equal the called ones to the bit, for rows in any slots at any positions.

On a device in name alone (`tests/fake_cuda.py`), so that every machine shows it, and on a real one where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from legato.config.engine import EngineConfig
from legato.engine import graphs
from legato.engine.batches import RowsPerCall
from legato.engine.captured import Recorder, fitting, sizes
from legato.engine.codec_pool import CodecPool
from legato.engine.decode import CodecStage, Windows
from legato.engine.graphs import RecordedSteps, RecordedWindows, record, spare_slots
from legato.engine.kv_pool import KVPool
from legato.engine.leases import CodecLease
from legato.engine.prefixes import PrefixStore
from legato.engine.runner import Runner
from legato.engine.steps import FirstCodeInputs, FrameInputs, Steps
from legato.errors import StateError
from legato.flow import Sampling, SequenceId, StreamId
from legato.models.codec.state import CodecStatePool
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache
from tests.engine.conftest import Cuda
from tests.engine.harness import GREEDY, WARM
from tests.engine.tiny import tiny_config, tiny_decoder, tiny_predictor, tiny_talker
from tests.fake_cuda import on_device
from tests.models.tiny_talker import CODEBOOKS, CODES

SLOTS, POSITIONS = 3, 16
SHARP = Sampling(0.3, 5, 0.7, 1.3, 1.4, 3, 0.6)
Settings = Sequence[Sampling]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, cuda: Cuda) -> Iterator[None]:
    monkeypatch.setattr(graphs, "LEAST_SPAN", 4)
    with cuda(), torch.inference_mode():
        yield


def called(cache: TalkerCache | None = None) -> tuple[Steps, KVPool]:
    """Steps on a cache whose slots hold noise, the same every time."""
    talker, predictor = deepcopy(tiny_talker()), deepcopy(tiny_predictor())
    on_device(talker)
    on_device(predictor)
    if cache is None:
        cache = TalkerCache.allocate(tiny_config().talker.stack, SLOTS + 1, POSITIONS, torch.float32, "cuda")
        noise = torch.randn(cache.keys.shape, generator=torch.Generator().manual_seed(5))
        cache.keys.copy_(noise)
        cache.values.copy_(noise.flip(-1))
    return Steps(tiny_config(), talker, predictor, cache), KVPool(cache, spare=1)


def recorded() -> tuple[RecordedSteps, KVPool]:
    steps, pool = called()
    return RecordedSteps(Recorder(steps.home), steps, pool, sizes(SLOTS)), pool


def filled(values: Tensor, rows: int, filler: int = 0) -> Tensor:
    """`values` on the device, with idle rows up to the recorded number."""
    rest = torch.full((rows - len(values), *values.shape[1:]), filler, dtype=values.dtype)
    return torch.cat([values, rest]).to("cuda")


def test_talker_steps_equal_called_ones_and_touch_no_other_slot() -> None:
    chance = torch.Generator().manual_seed(2)
    (graph, pool), (steps, plain) = recorded(), called()
    for trial in range(8):
        rows = 1 + trial % SLOTS
        slots = torch.randperm(SLOTS, generator=chance)[:rows]
        positions = torch.randint(POSITIONS, (rows,), generator=chance)
        frames = torch.randint(CODES, (rows, CODEBOOKS), generator=chance)
        tokens = torch.randint(40, (rows, 1), generator=chance)
        span = int(positions.max()) + 1
        leased = KVRows(slots.to("cuda"))
        got = graph.talker(frames, tokens, leased, positions, span=span)
        size = fitting(sizes(SLOTS), rows)
        wanted = steps.talker(
            filled(frames, size),
            filled(tokens, size),
            KVRows(filled(slots, size, plain.spare)),
            filled(positions, size),
            span=fitting((4, 8, 16), span),
        )
        assert got.cpu().equal(wanted[:rows].cpu())
        for ours, theirs in ((pool.cache.keys, plain.cache.keys), (pool.cache.values, plain.cache.values)):
            assert ours[:, :SLOTS].cpu().equal(theirs[:, :SLOTS].cpu())


def test_the_span_and_the_idle_rows_change_a_row_by_rounding_alone() -> None:
    (graph, _), (steps, _) = recorded(), called()
    frames, tokens, positions = torch.full((1, CODEBOOKS), 3), torch.tensor([[7]]), torch.tensor([4])
    slot = KVRows(torch.tensor([1], device="cuda"))
    got = graph.talker(frames, tokens, slot, positions, span=5).cpu()
    wanted = steps.talker(frames.to("cuda"), tokens.to("cuda"), slot, positions.to("cuda"), span=5).cpu()
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
    """Whether recorded draws give the codes of called ones, for random states and mixed settings.

    `change` is done to the temperatures that the recording is given: a fault to be caught.
    """
    chance, (graph, _), (steps, _) = torch.Generator().manual_seed(3), recorded(), called()
    agree = []
    for settings in MIXES * 3:
        first, frame = first_codes(chance, settings), frames_of(chance, settings)
        got_first = graph.first_codes(first._replace(temperature=change(first.temperature)))
        got_frame = graph.frames(frame._replace(temperature=change(frame.temperature)))
        wanted_first = steps.first_codes(FirstCodeInputs(*(each.to("cuda") for each in first)))
        wanted_frame = steps.frames(FrameInputs(*(each.to("cuda") for each in frame)))
        for got, wanted in ((got_first, wanted_first), (got_frame, wanted_frame)):
            agree.append(got.codes.tolist() == wanted.codes.tolist() and got.finite.tolist() == wanted.finite.tolist())
    return agree


def test_draws_follow_each_row_s_own_settings() -> None:
    assert all(draws_agree())


def test_settings_that_the_recording_holds_fast_are_caught() -> None:
    assert not all(draws_agree(torch.ones_like))  # what idle rows were recorded with


def test_a_row_that_is_not_finite_fails_alone() -> None:
    graph, _ = recorded()
    given = first_codes(torch.Generator().manual_seed(4), (WARM, WARM))
    given.hidden[1] = float("nan")
    assert graph.first_codes(given).finite.tolist() == [True, False]


def windows_of(spare: int = 1) -> Windows:
    decoder = deepcopy(tiny_decoder())
    on_device(decoder)
    return Windows(decoder, CodecPool(CodecStatePool(decoder.fresh(SLOTS + spare)), spare=spare))


def test_codec_windows_equal_called_ones_over_whole_streams() -> None:
    chance, plain, windows = torch.Generator().manual_seed(6), windows_of(), windows_of()
    graph = RecordedWindows(Recorder(windows.device), windows, sizes(SLOTS))
    leases = [(windows.pool.acquire(StreamId(at), []), plain.pool.acquire(StreamId(at), [])) for at in range(SLOTS)]
    for trial in range(6):
        rows = 1 + trial % SLOTS
        chosen = torch.randperm(SLOTS, generator=chance)[:rows].tolist()
        counts = torch.randint(1, 10 if trial == 5 else 9, (rows,), generator=chance).tolist()
        codes = torch.randint(CODES, (rows, max(counts), CODEBOOKS), generator=chance)
        ours: list[CodecLease] = [leases[at][0] for at in chosen]
        theirs = [leases[at][1] for at in chosen]
        got, wanted = graph.decode(ours, codes, counts).cpu(), plain.decode(theirs, codes, counts).cpu()
        frame = wanted.shape[1] // codes.shape[1]
        for row, count in enumerate(counts):
            assert torch.allclose(got[row, : count * frame], wanted[row, : count * frame], atol=1e-5)
    ours_after = windows.pool.gather([one for one, _ in leases]).tensors()
    theirs_after = plain.pool.gather([other for _, other in leases]).tensors()
    assert ours_after[0].tolist() == theirs_after[0].tolist()  # frames so far
    assert all(
        torch.allclose(one.cpu(), other.cpu(), atol=1e-5) for one, other in zip(ours_after, theirs_after, strict=True)
    )


def test_spare_slots_are_never_leased_and_a_pool_without_one_says_so() -> None:
    _, pool = called()
    leases = [pool.acquire(SequenceId(at)) for at in range(SLOTS)]
    assert pool.free == 0
    assert pool.spare not in [lease.slot for lease in leases]
    windows = windows_of()
    taken = [windows.pool.acquire(StreamId(at), []).slot for at in range(SLOTS)]
    assert windows.pool.spare not in taken
    for without in (KVPool(pool.cache), windows_of(spare=0).pool):
        with pytest.raises(StateError, match="without a spare slot"):
            _ = without.spare


def test_work_is_recorded_once_and_on_cuda_alone() -> None:
    config = EngineConfig(streams=SLOTS, kv_slots=SLOTS, positions=POSITIONS, deterministic=True)
    assert [spare_slots(config, torch.device(at)) for at in ("cuda", "cpu", "meta")] == [1, 0, 0]
    assert spare_slots(EngineConfig(graphs=False), torch.device("cuda")) == 0
    _, pool = called()
    talker, predictor = deepcopy(tiny_talker()), deepcopy(tiny_predictor())
    on_device(talker)
    on_device(predictor)
    one = RowsPerCall.same(1)
    runner = Runner(tiny_config(), talker, predictor, pool, rows_per_call=one, prefixes=PrefixStore(0))
    windows = windows_of()
    stage = CodecStage(windows._decoder, windows.pool, rows_per_call=1)
    record(runner, stage, config)
    assert isinstance(runner.compute, RecordedSteps)
    assert isinstance(stage.windows, RecordedWindows)
    with pytest.raises(StateError, match="recorded before"):
        record(runner, stage, config)
