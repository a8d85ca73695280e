"""The engine with its thread: many clients, cancelled, closed, broken. Every stream ends and no thread is left."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Sequence

import pytest

from legato.engine.demand import BACKGROUND, UNLIMITED, paced
from legato.engine.handle import StreamHandle
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import StreamEvent
from legato.errors import EngineClosedError, GenerationError, LegatoError, QueueFullError, StateError
from legato.flow import FinishReason, Packet, SequenceId, StreamId
from tests.engine.clients import TEXT, MakeEngine, in_threads, read, request, speak, tiny_engine, until


def test_parallel_requests_get_their_own_sound_and_number(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = [read(speak(engine.submit(request(seed)))) for seed in range(8)]
    heard: dict[int, bytes] = {}
    ids: list[StreamId] = []

    def client(seed: int) -> None:
        handle = speak(engine.submit(request(seed)))
        packets = list(handle)
        ids.append(handle.id)
        assert {packet.stream for packet in packets} == {handle.id}
        heard[seed] = b"".join(packet.float32_le for packet in packets)

    in_threads(*(lambda seed=seed: client(seed) for seed in range(8)))
    assert [heard[seed] for seed in range(8)] == solo
    assert len(set(solo)) == 8
    assert len(set(ids)) == 8


def test_clients_that_come_go_and_change_their_minds_all_end(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ends: list[FinishReason | None] = []

    def client(number: int) -> None:
        for turn in range(4):
            handle = engine.submit(request(number * 10 + turn, demand=[UNLIMITED, paced(1), BACKGROUND][turn % 3]))
            handle.append_text(TEXT)
            match (number + turn) % 4:
                case 0:
                    handle.end_text()
                case 1:
                    handle.cancel()
                case 2:
                    next(handle)
                    handle.cancel()
                    handle.cancel()
                case 3:
                    handle.end_text()
                    handle.set_demand(UNLIMITED)
            ends.append(list(handle)[-1].finish_reason)
            handle.cancel()

    in_threads(*(lambda number=number: client(number) for number in range(6)))
    assert len(ends) == 24
    assert set(ends) <= {FinishReason.MAX_FRAMES, FinishReason.EOS, FinishReason.CANCELLED}
    assert FinishReason.CANCELLED in ends


@pytest.mark.parametrize("drain", [False, True])
def test_close_ends_streams_in_every_state_and_never_hangs(make_engine: MakeEngine, drain: bool) -> None:
    engine = make_engine(streams=2)
    waiting_for_text = engine.submit(request(1, max_frames=50))
    waiting_for_text.append_text("abc")
    unread = speak(engine.submit(request(2, demand=paced(1))))
    queued = [speak(engine.submit(request(seed))) for seed in (3, 4)]
    until(lambda: engine.stats().frames >= 2)
    just_submitted = speak(engine.submit(request(5)))
    in_threads(lambda: engine.close(drain=drain))
    handles = [waiting_for_text, unread, *queued, just_submitted]
    in_threads(*(lambda handle=handle: list(handle) for handle in handles))
    outcomes = engine.stats().outcomes
    assert sum(outcomes.values()) == 5
    assert outcomes.get("cancelled", 0) == (0 if drain else 5)
    with pytest.raises(EngineClosedError):
        engine.submit(request())
    waiting_for_text.append_text("too late")
    in_threads(engine.close)  # twice


def test_close_at_once_after_submit_leaves_nobody_waiting(make_engine: MakeEngine) -> None:
    for drain in (False, True):
        engine = make_engine()
        handle = engine.submit(request())  # without any text
        in_threads(functools.partial(engine.close, drain=drain))
        if drain:
            with pytest.raises(LegatoError):  # nothing to speak
                list(handle)
        else:
            assert list(handle)[-1].finish_reason is FinishReason.CANCELLED


def test_a_receiver_that_raises_loses_its_own_stream_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = read(speak(engine.submit(request(7))))
    got: list[StreamEvent] = []

    def broken(event: StreamEvent) -> None:
        got.append(event)
        raise ValueError("the client's own fault")

    bad = speak(engine.submit(request(1, max_frames=20), broken))
    assert read(speak(engine.submit(request(7)))) == solo
    until(lambda: engine.stats().streams_open == 0)
    assert isinstance(got[0], Packet)
    assert isinstance(got[-1], GenerationError)
    assert len(got) == 2
    assert engine.stats().errors == {"generation": 1}
    with pytest.raises(StateError, match="delivered"):
        next(bad)


def test_cancel_and_close_from_the_receiver_itself(make_engine: MakeEngine) -> None:
    engine = make_engine()
    got: list[Packet] = []
    handles: list[StreamHandle] = []

    def receive(event: StreamEvent) -> None:
        assert isinstance(event, Packet)
        got.append(event)
        handles[0].cancel()
        if event.last:
            engine.close()

    handles.append(engine.submit(request(1, max_frames=40), receive))
    speak(handles[0])
    until(lambda: not engine._thread.is_alive())
    assert got[-1].finish_reason is FinishReason.CANCELLED
    assert len(got) <= 3  # a packet, at most one that was under way, the last


def test_a_device_that_breaks_ends_everybody_aloud_and_the_engine_serves_the_next(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    solo = read(speak(engine.submit(request(7))))

    def broken(sequences: Sequence[TalkerSequence]) -> None:
        if sequences:
            raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "step", broken)
        handles = [speak(engine.submit(request(seed))) for seed in range(5)]
        for handle in handles:
            with pytest.raises(EngineClosedError, match="device is lost"):
                list(handle)
    assert read(speak(engine.submit(request(7)))) == solo


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_slot_that_is_lost_ends_the_engine_aloud_and_nobody_waits() -> None:
    engine = tiny_engine()
    engine.kv_pool.acquire(SequenceId(10**6))  # nobody will give this back
    assert read(speak(engine.submit(request(1))))  # the client who finds out has all of his sound
    until(lambda: not engine._thread.is_alive())
    with pytest.raises(EngineClosedError):
        engine.submit(request(2))
    engine.close()


def test_an_engine_says_at_its_start_what_its_limits_cost(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="legato.engine"):
        engine = make_engine(queue=7)
    (said,) = [record.getMessage() for record in caplog.records]
    position_kib = engine.kv_pool.cache.bytes_per_position / 1024
    assert f"4 talker slots of 128 positions at {position_kib:g} KiB" in said
    assert "3 codec slots" in said
    assert "7 streams may wait" in said


def test_the_queue_has_an_end(make_engine: MakeEngine) -> None:
    engine = make_engine(streams=1, queue=2)
    handles = [engine.submit(request(seed)) for seed in range(3)]
    with pytest.raises(QueueFullError, match=r"3 streams.*limit is 3"):
        engine.submit(request())
    handles[0].cancel()
    list(handles[0])
    assert engine.submit(request()) is not None


def test_waiting_for_text_or_for_the_listener_costs_no_turn(make_engine: MakeEngine) -> None:
    engine = make_engine()
    turns: list[int] = []
    turn = engine._loop.turn

    def counted(commands: list[object]) -> bool:
        turns.append(1)
        return turn(commands)  # type: ignore[arg-type]

    engine._loop.turn = counted  # type: ignore[method-assign,assignment]
    hungry = engine.submit(request(1, max_frames=50))
    hungry.append_text("abc")
    full = speak(engine.submit(request(2, max_frames=50, demand=paced(4), packets=(1,))))
    until(lambda: engine.stats().frames == 3 + 4)
    time.sleep(0.05)
    before = len(turns)
    time.sleep(0.15)
    assert len(turns) == before
    assert sum(packet.frames for packet, _ in zip(full, range(3), strict=False)) == 3
    until(lambda: engine.stats().frames == 3 + 7)


def test_an_event_loop_reads_many_streams_without_threads_and_goes_on_meanwhile(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = [read(speak(engine.submit(request(seed)))) for seed in range(6)]
    threads = threading.active_count()
    ticks: list[int] = []

    async def client(seed: int) -> bytes:
        handle = engine.submit(request(seed, demand=paced(2)))
        handle.append_text(TEXT[:4])
        await asyncio.sleep(0.01)
        speak(handle, TEXT[4:])
        assert threading.active_count() == threads
        return b"".join([packet.float32_le async for packet in handle])

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.001)

    async def impatient() -> None:
        handle = engine.submit(request(99))  # no text ever comes
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.__anext__(), 0.05)
        handle.cancel()
        assert [packet.finish_reason async for packet in handle] == [FinishReason.CANCELLED]

    async def everything() -> list[bytes]:
        ticking = asyncio.create_task(tick())
        heard, _ = await asyncio.gather(asyncio.gather(*(client(seed) for seed in range(6))), impatient())
        ticking.cancel()
        return heard

    assert asyncio.run(everything()) == solo
    assert len(ticks) > 10


def test_statistics_add_up(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for seed in range(3):
        read(speak(engine.submit(request(seed))))
    cancelled = engine.submit(request(5))
    cancelled.cancel()
    list(cancelled)
    stats = engine.stats()
    assert sum(stats.outcomes.values()) == 4
    assert stats.outcomes["cancelled"] == 1
    assert stats.first_packet_s.count == stats.real_time_factor.count == 3
    assert stats.frames == round(stats.audio_s * 1000)  # a frame of the tiny codec lasts a millisecond
    assert stats.rows["code predictor"].total == stats.frames
    assert (stats.talker_slots.slots, stats.talker_slots.free) == (4, 4)
    assert all(stats.stages_s[name].count == 3 for name in stats.stages_s)
