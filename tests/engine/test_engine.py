"""The engine with its thread: many clients, cancel, close, failures. Every stream ends and no thread is left."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Sequence

import pytest

from legato.engine.flow_control import BACKGROUND, UNLIMITED, paced
from legato.engine.handle import StreamHandle
from legato.engine.sequence import Sequence as TalkerSequence
from legato.engine.stream import StreamEvent
from legato.errors import EngineClosedError, GenerationError, LegatoError, QueueFullError, StateError
from legato.types import FinishReason, Packet, SequenceId, StreamId
from tests.engine.clients import TEXT, MakeEngine, in_threads, read, request, speak, tiny_engine, until


def test_parallel_requests_get_their_own_audio_and_id(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = [read(speak(engine.submit(request(seed)))) for seed in range(8)]
    received: dict[int, bytes] = {}
    ids: list[StreamId] = []

    def client(seed: int) -> None:
        handle = speak(engine.submit(request(seed)))
        packets = list(handle)
        ids.append(handle.id)
        assert {packet.stream for packet in packets} == {handle.id}
        received[seed] = b"".join(packet.float32_le for packet in packets)

    in_threads(*(lambda seed=seed: client(seed) for seed in range(8)))
    assert [received[seed] for seed in range(8)] == solo
    assert len(set(solo)) == 8
    assert len(set(ids)) == 8


def test_streams_end_for_every_order_of_client_commands(make_engine: MakeEngine) -> None:
    engine = make_engine()
    ends: list[FinishReason | None] = []

    def client(number: int) -> None:
        for round_number in range(4):
            handle = engine.submit(
                request(number * 10 + round_number, flow_control=[UNLIMITED, paced(1), BACKGROUND][round_number % 3])
            )
            handle.append_text(TEXT)
            match (number + round_number) % 4:
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
                    handle.set_flow_control(UNLIMITED)
            ends.append(list(handle)[-1].finish_reason)
            handle.cancel()

    in_threads(*(lambda number=number: client(number) for number in range(6)))
    assert len(ends) == 24
    assert set(ends) <= {FinishReason.MAX_FRAMES, FinishReason.EOS, FinishReason.CANCELLED}
    assert FinishReason.CANCELLED in ends


@pytest.mark.parametrize("drain", [False, True])
def test_close_ends_streams_in_every_state_without_hanging(make_engine: MakeEngine, drain: bool) -> None:
    engine = make_engine(streams=2)
    waiting_for_text = engine.submit(request(1, max_frames=50))
    waiting_for_text.append_text("abc")
    unread = speak(engine.submit(request(2, flow_control=paced(1))))
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


def test_close_right_after_submit_ends_the_stream(make_engine: MakeEngine) -> None:
    for drain in (False, True):
        engine = make_engine()
        handle = engine.submit(request())  # without any text
        in_threads(functools.partial(engine.close, drain=drain))
        if drain:
            with pytest.raises(LegatoError):  # no text
                list(handle)
        else:
            assert list(handle)[-1].finish_reason is FinishReason.CANCELLED


def test_callback_that_raises_fails_only_its_own_stream(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = read(speak(engine.submit(request(7))))
    got: list[StreamEvent] = []

    def broken(event: StreamEvent) -> None:
        got.append(event)
        raise ValueError("an error in the client's callback")

    bad = speak(engine.submit(request(1, max_frames=20), broken))
    assert read(speak(engine.submit(request(7)))) == solo
    until(lambda: engine.stats().streams_open == 0)
    assert isinstance(got[0], Packet)
    assert isinstance(got[-1], GenerationError)
    assert len(got) == 2
    assert engine.stats().errors == {"generation": 1}
    with pytest.raises(StateError, match="to a callback"):
        next(bad)


def test_cancel_and_close_from_the_callback(make_engine: MakeEngine) -> None:
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
    assert len(got) <= 3  # a packet, at most one more, and the last


def test_device_failure_ends_all_streams_and_engine_goes_on(
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
def test_slot_leak_ends_the_engine_and_all_streams() -> None:
    engine = tiny_engine()
    engine.kv_pool.acquire(SequenceId(10**6))  # never released
    assert read(speak(engine.submit(request(1))))  # the stream itself is complete
    until(lambda: not engine._thread.is_alive())
    with pytest.raises(EngineClosedError):
        engine.submit(request(2))
    engine.close()


def test_engine_logs_memory_of_its_limits_at_start(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="legato.engine"):
        engine = make_engine(queue=7)
    (message,) = [record.getMessage() for record in caplog.records]
    position_kib = engine.kv_pool.cache.bytes_per_position / 1024
    assert f"4 KV slots of 128 positions at {position_kib:g} KiB" in message
    assert "3 codec slots" in message
    assert "up to 7 streams can wait" in message


def test_full_queue_refuses_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(streams=1, queue=2)
    handles = [engine.submit(request(seed)) for seed in range(3)]
    with pytest.raises(QueueFullError, match=r"3 streams.*limit is 3"):
        engine.submit(request())
    handles[0].cancel()
    list(handles[0])
    assert engine.submit(request()) is not None


def test_waiting_for_text_or_client_runs_no_steps(make_engine: MakeEngine) -> None:
    engine = make_engine()
    steps: list[int] = []
    step = engine._core.step

    def counted(commands: list[object]) -> bool:
        steps.append(1)
        return step(commands)  # type: ignore[arg-type]

    engine._core.step = counted  # type: ignore[method-assign,assignment]
    without_text = engine.submit(request(1, max_frames=50))
    without_text.append_text("abc")
    full = speak(engine.submit(request(2, max_frames=50, flow_control=paced(4), packets=(1,))))
    until(lambda: engine.stats().frames == 3 + 4)
    time.sleep(0.05)
    before = len(steps)
    time.sleep(0.15)
    assert len(steps) == before
    assert sum(packet.frames for packet, _ in zip(full, range(3), strict=False)) == 3
    until(lambda: engine.stats().frames == 3 + 7)


def test_event_loop_reads_many_streams_without_threads_or_blocking(make_engine: MakeEngine) -> None:
    engine = make_engine()
    solo = [read(speak(engine.submit(request(seed)))) for seed in range(6)]
    threads = threading.active_count()
    ticks: list[int] = []

    async def client(seed: int) -> bytes:
        handle = engine.submit(request(seed, flow_control=paced(2)))
        handle.append_text(TEXT[:4])
        await asyncio.sleep(0.01)
        speak(handle, TEXT[4:])
        assert threading.active_count() == threads
        return b"".join([packet.float32_le async for packet in handle])

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.001)

    async def client_with_timeout() -> None:
        handle = engine.submit(request(99))  # no text ever comes
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle.__anext__(), 0.05)
        handle.cancel()
        assert [packet.finish_reason async for packet in handle] == [FinishReason.CANCELLED]

    async def run_all() -> list[bytes]:
        ticking = asyncio.create_task(tick())
        received, _ = await asyncio.gather(asyncio.gather(*(client(seed) for seed in range(6))), client_with_timeout())
        ticking.cancel()
        return received

    assert asyncio.run(run_all()) == solo
    assert len(ticks) > 10


def test_statistics_are_consistent(make_engine: MakeEngine) -> None:
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
