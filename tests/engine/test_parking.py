"""Streams that cannot use their slots give them to others, and go on later with exactly the same output.

The talker, the code predictor and the codec are the tiny ones: codes and samples depend on everything in a slot.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato.config.engine import EngineConfig
from legato.engine.flow_control import UNLIMITED, FlowControl, paced
from legato.engine.sequence import SequenceState
from legato.engine.stats import PoolUse
from legato.errors import InputError
from legato.types import FinishReason, StreamId
from tests.engine.clients import MakeEngine, request
from tests.engine.harness import LONG, SHORT, WARM, Harness, Received
from tests.engine.test_core import stops_at

TEXT = "ab cd ef gh ij"
LIMIT = 18


def harness(*, streams: int = 1, yield_s: float = 0.05, parked_bytes: int = 2**30) -> Harness:
    """One slot, and streams that are parked after five steps of idleness."""
    return Harness(streams=streams, rows_per_call=1, yield_s=yield_s, parked_bytes=parked_bytes)


def alone(text: str = TEXT, *, seed: int = 5, segments: bool = False) -> tuple[Harness, Received]:
    """The same request on an engine of its own."""
    h = Harness(rows_per_call=1, segments=SHORT if segments else LONG)
    _, received = h.submit(text, seed=seed, max_frames=LIMIT, sampling=WARM)
    h.run()
    return h, received


def states(h: Harness, stream: StreamId) -> set[SequenceState]:
    return {sequence.state for sequence in h.streams[stream].sequences}


def pass_time(h: Harness, seconds: float) -> None:
    """Steps of the engine while nothing arrives; it wakes up when it asked for it."""
    until_s = h.now_s + seconds
    while h.now_s < until_s:
        h.step()


def test_stream_that_waits_for_text_is_parked_and_goes_on_bit_identically() -> None:
    reference, expected = alone()
    h = harness()
    stream, received = h.submit(TEXT[:5], seed=5, max_frames=LIMIT, sampling=WARM, ended=False)
    pass_time(h, 0.5)
    assert SequenceState.WAITING_FOR_TEXT in states(h, stream)  # nobody else needs the slot
    _, other = h.submit("other", seed=6, max_frames=4)
    pass_time(h, 0.5)
    assert other.reason is FinishReason.MAX_FRAMES
    assert SequenceState.PARKED in states(h, stream)
    assert h.kv.all_free
    assert h.codec.all_free
    h.append(stream, TEXT[5:])
    h.end(stream)
    h.run()
    assert h.codes(5) == reference.codes(5)
    np.testing.assert_array_equal(received.samples, expected.samples)
    h.assert_all_slots_free()


def test_paused_stream_is_parked_and_returns_when_its_client_has_taken_half() -> None:
    reference, expected = alone()
    h = harness()
    stream, received = h.submit(TEXT, seed=5, max_frames=LIMIT, sampling=WARM, flow_control=paced(8))
    _, other = h.submit("other", seed=6, max_frames=4)
    pass_time(h, 1.0)
    assert (received.frames, other.frames) == (7, 4)  # the eighth frame waits for a full packet
    h.report_consumed(stream, 3)
    pass_time(h, 0.5)
    assert SequenceState.PARKED in states(h, stream)
    h.report_consumed(stream, 6)
    pass_time(h, 0.5)
    assert SequenceState.PARKED not in states(h, stream)
    h.set_flow_control(stream, UNLIMITED, 6)
    h.run()
    assert h.codes(5) == reference.codes(5)
    np.testing.assert_array_equal(received.samples, expected.samples)
    h.assert_all_slots_free()


def test_stream_between_two_segments_is_parked() -> None:
    reference, expected = alone("Ab cd. Ef gh.", segments=True)
    h = Harness(streams=1, rows_per_call=1, yield_s=0.05, segments=SHORT)
    stream, received = h.submit("Ab cd. ", seed=5, max_frames=LIMIT, sampling=WARM, ended=False)
    pass_time(h, 0.5)
    _, other = h.submit("other", seed=6, max_frames=4)
    pass_time(h, 0.5)
    assert other.frames == 4
    h.append(stream, "Ef gh.")
    h.end(stream)
    h.run()
    assert h.codes(5) == reference.codes(5)
    np.testing.assert_array_equal(received.samples, expected.samples)
    h.assert_all_slots_free()


def test_stream_is_not_parked_before_the_stated_time_or_without_memory() -> None:
    h = harness(yield_s=2.0)
    _, _ = h.submit(TEXT[:5], seed=5, ended=False)
    _, other = h.submit("other", seed=6, max_frames=4)
    pass_time(h, 1.9)
    assert not other.events
    assert 0 < h.core.wake_in_s < 0.5  # without commands the engine sleeps until then
    pass_time(h, 0.5)
    assert other.frames == 4
    full = harness(parked_bytes=100)
    stream, _ = full.submit(TEXT[:5], seed=5, ended=False)
    _, other = full.submit("other", seed=6, max_frames=4)
    pass_time(full, 1.0)
    assert not other.frames
    assert SequenceState.WAITING_FOR_TEXT in states(full, stream)


def test_parked_stream_can_be_cancelled_and_drained() -> None:
    h = harness()
    stream, received = h.submit(TEXT[:5], seed=5, ended=False)
    h.submit("other", seed=6, max_frames=4)
    pass_time(h, 0.5)
    assert h.runner.num_sequences == 1
    h.cancel(stream)
    h.run()
    assert received.reason is FinishReason.CANCELLED
    assert h.runner.num_sequences == 0
    h.assert_all_slots_free()


def test_two_live_streams_share_one_slot_without_underruns() -> None:
    """A live stream and a download: the download lends its slot while the live one is about to underrun."""
    frames = 400
    script = stops_at({1: frames, 2: frames})
    h = Harness(script, streams=1, positions=512, tick_s=0.02, frame_s=0.08)  # type: ignore[arg-type]
    live, heard = h.submit(TEXT, seed=1, max_frames=frames, packets=(4,), flow_control=paced(50))
    _, download = h.submit(TEXT, seed=2, max_frames=frames, packets=(4,))
    while not (heard.packets and heard.packets[-1].last and download.packets and download.packets[-1].last):
        h.step()
        assert h.now_s < 60
        first = h.streams[live].timing.packet_s[:1]
        if first:
            played = int((h.now_s - first[0]) / 0.08)
            h.report_consumed(live, min(played, heard.frames))
    assert (heard.frames, download.frames) == (frames, frames)
    assert h.streams[live].timing.underruns == 0
    unused = PoolUse(0, 0)
    stats = h.registry.stats.snapshot(streams_open=0, streams_parked=0, talker_slots=unused, codec_slots=unused)
    assert stats.parks >= 2
    h.assert_all_slots_free()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(1, 8)),
        st.tuples(st.just("time"), st.integers(1, 12), st.just(0)),
    ),
    max_size=25,
)


LAST_FRAMES_WAIT = [
    *[("text", 0, 1)] * 3,
    *[("text", 1, 1), ("text", 0, 3), ("text", 1, 5), ("text", 1, 4), ("time", 1, 0), ("text", 3, 1), ("time", 8, 0)],
]
"""Stream 1 is parked while its last two frames wait for more text; then its text ends."""


@settings(max_examples=20, deadline=None)
@example(LAST_FRAMES_WAIT, 1, [paced(2), UNLIMITED, UNLIMITED, UNLIMITED])
@given(
    ACTIONS,
    st.integers(1, 2),
    st.lists(st.sampled_from([UNLIMITED, paced(2), paced(6)]), min_size=4, max_size=4),
)
def test_parking_never_changes_a_stream(
    actions: list[tuple[str, int, int]], slots: int, controls: list[FlowControl]
) -> None:
    """Every stream of any mix ends with the codes and samples that it has alone."""
    h = harness(streams=slots)
    given_text = [0] * 4
    streams = [
        h.submit("", seed=seed, max_frames=LIMIT, sampling=WARM, ended=False, flow_control=controls[seed])
        for seed in range(4)
    ]
    for kind, number, amount in actions:
        stream, received = streams[number % 4]
        if kind == "text":
            start, end = given_text[number], min(given_text[number] + amount, len(TEXT))
            given_text[number] = end
            if start < end:
                h.append(stream, TEXT[start:end])
        elif kind == "take":
            h.report_consumed(stream, min(received.frames, h.streams[stream].consumed + amount))
        else:
            pass_time(h, number * 0.03)
    for (stream, _), done in zip(streams, given_text, strict=True):
        h.append(stream, TEXT[done:])
        h.end(stream)
        h.set_flow_control(stream, UNLIMITED)
    h.run()
    for seed, (_, received) in enumerate(streams):
        reference, expected = alone(seed=seed)
        assert h.codes(seed) == reference.codes(seed)
        np.testing.assert_array_equal(received.samples, expected.samples)
    h.assert_all_slots_free()


@pytest.mark.parametrize("gap_s", [0.04, 0.9])
def test_letter_now_and_then_does_not_hold_a_slot_but_text_at_speaking_rate_does(gap_s: float) -> None:
    h = Harness(stops_at({}), streams=1, yield_s=1.0, frame_s=0.08)  # type: ignore[arg-type]
    stream, received = h.submit(TEXT[:4], seed=5, max_frames=200, sampling=WARM, ended=False)
    pass_time(h, 0.1)
    _, other = h.submit("other", seed=6, max_frames=4)
    for _ in range(40):
        h.append(stream, "a")
        pass_time(h, gap_s)
    assert bool(other.frames) is (gap_s > 0.5)
    h.cancel(stream)
    h.run()
    assert received.reason is FinishReason.CANCELLED
    h.assert_all_slots_free()


# --- with the engine's thread ----------------------------------------------------------------------------------------


def test_engine_thread_wakes_up_to_park(make_engine: MakeEngine) -> None:
    """Nothing is sent to the engine while the second stream waits: it must wake up by itself."""
    engine = make_engine(streams=1, yield_s=0.2)
    open_for_text = engine.submit(request(seed=1))
    open_for_text.append_text("ab")
    waiting = engine.submit(request(seed=2, max_frames=4))
    waiting.append_text("other")
    waiting.end_text()
    ended = threading.Event()

    def read() -> None:
        list(waiting)
        ended.set()

    started_s = time.monotonic()
    threading.Thread(target=read, daemon=True).start()
    assert ended.wait(30)
    assert time.monotonic() - started_s > 0.1
    assert engine.stats().streams_parked == 1
    assert engine.stats().parks == 1
    open_for_text.cancel()
    list(open_for_text)


@pytest.mark.parametrize(("field", "value"), [("yield_s", -1.0), ("yield_s", float("nan")), ("parked_bytes", -1)])
def test_invalid_settings_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        EngineConfig(**{field: value})  # type: ignore[arg-type]
