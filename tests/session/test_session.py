"""Session state machine: utterance order, buffer limits, interruption, and exactly one outcome for each utterance.

Test names end with the row of docs/faults.md that they cover (R38, R39).
"""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.errors import InputError, NonFiniteError, StateError
from legato.session import states
from legato.session.events import (
    AddText,
    AudioEnd,
    AudioPacket,
    AudioStart,
    Cancelled,
    ClockTick,
    CloseInput,
    Disconnect,
    EndUtterance,
    Interrupt,
    PacketReceived,
    PlaybackAck,
    PlaybackFinished,
    SessionClosed,
    SessionEvent,
    StreamFailed,
    UtteranceFailed,
    UtteranceId,
)
from legato.session.session import Session
from tests.session.world import FRAME, World, limits, outcomes, packet

FIRST = UtteranceId(0)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_missing_transition_raises_error_with_state_and_event() -> None:
    for state, event in itertools.product(states.UtteranceState, states.UtteranceEvent):
        if (state, event) in states.UTTERANCE_TRANSITIONS:
            states.next_utterance_state(state, event)
        else:
            with pytest.raises(StateError, match=f"{state.value}.*{event.value}"):
                states.next_utterance_state(state, event)
    kinds = get_args(SessionEvent)
    allowed = {(state, kind) for state in states.SessionState for kind in kinds} & set(states.SESSION_TRANSITIONS)
    assert (states.SessionState.CLOSED, AddText) not in allowed
    with pytest.raises(StateError, match=r"closed cannot take AddText"):
        states.next_session_state(states.SessionState.CLOSED, AddText("a"))
    with pytest.raises(StateError, match="no utterance is open"):
        World(limits()).handle(EndUtterance())


# --- order and bounds ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    speed=st.sampled_from([1, 3, 10]),
    packet_frames=st.integers(1, 4),
    lead_ms=st.sampled_from([0, 100, 400]),
    start_ms=st.sampled_from([0, 200]),
)
def test_utterances_play_completely_in_order_within_limits(
    lengths: list[int], speed: int, packet_frames: int, lead_ms: int, start_ms: int
) -> None:
    playback = limits(buffer_ms=640, lead_ms=lead_ms, start_ms=start_ms)
    world = World(playback, speed=speed, packet_frames=packet_frames)
    spoken = [world.speak("x" * length) for length in lengths]
    while not world.session.idle:
        assert world.now_ms < 30_000
        generated = sum(stream.frames for stream in world.streams.values()) * FRAME
        unplayed = generated - sum(h[2] for h in world.device.heard)
        assert unplayed <= 640 + packet_frames * FRAME * len(lengths)
        world.run(8)
    assert world.device.heard == [(u, 0, n * FRAME) for u, n in zip(spoken, lengths, strict=True)]
    if lead_ms:
        assert world.device.max_buffered_samples <= max(
            lead_ms, start_ms + packet_frames * FRAME, packet_frames * FRAME
        )
    kinds = [
        type(output)
        for output in world.outputs
        if isinstance(output, AudioStart | AudioEnd) and output.utterance_id == spoken[-1]
    ]
    assert kinds == [AudioStart, AudioEnd]
    for utterance_id, length in zip(spoken, lengths, strict=True):
        (outcome,) = outcomes(world, utterance_id)
        assert isinstance(outcome, PlaybackFinished)
        assert outcome.samples == length * FRAME


def test_no_gap_between_utterances_and_second_waits_for_first() -> None:
    world = World(limits(buffer_ms=400), speed=4)
    world.speak("x" * 20)
    world.speak("y" * 20)
    world.run(60)
    assert world.streams[UtteranceId(1)].frames == 0
    silent_before = world.device.silent_samples
    world.run_until_idle()
    assert world.device.silent_samples - silent_before < world.step_ms  # rest of the last step
    assert [h[0] for h in world.device.heard] == [0, 1]


def test_generation_runs_ahead_during_playback_r38() -> None:
    """The total time is the longer of generation and playback, not their sum, and there is no gap between packets."""
    world = World(limits(buffer_ms=2000), speed=2, packet_frames=4)
    world.speak("x" * 100)
    world.run_until_idle()
    assert world.now_ms <= 100 * FRAME + 4 * FRAME // 2 + 2
    assert world.device.silent_samples <= 4 * FRAME // 2 + 2


def test_streamed_text_goes_into_one_utterance_until_it_ends() -> None:
    world = World(limits())
    for piece in ("ab", "c", "de"):
        world.handle(AddText(piece))
    assert world.streams[FIRST].text == "abcde"
    assert not world.streams[FIRST].text_ended
    world.handle(EndUtterance())
    world.handle(AddText("next"))
    assert world.streams[UtteranceId(1)].text == "next"


def test_text_after_early_end_of_stream_is_dropped() -> None:
    world = World(limits())
    world.handle(AddText("a"))
    world.streams[FIRST].finished = True
    world.handle(PacketReceived(FIRST, packet(0, 1, last=True)))
    world.run(200)
    world.handle(AddText("too late"))
    assert world.streams[FIRST].text == "a"
    world.handle(EndUtterance())
    assert world.speak("b") == 1
    world.run_until_idle()
    assert [h[0] for h in world.device.heard] == [0, 1]


def test_audio_end_is_sent_before_playback_finished() -> None:
    """Also if the socket accepts the last packet so slowly that the clock passes the end of playback."""
    now = [0.0]
    session = Session(limits(), lambda: now[0])
    session.handle(AddText("x"))
    session.handle(EndUtterance())
    session.handle(PacketReceived(FIRST, packet(0, 1, last=True)))
    assert [type(session.next_output()) for _ in range(2)] == [AudioStart, AudioPacket]
    now[0] = 5.0
    assert [type(session.next_output()) for _ in range(2)] == [AudioEnd, PlaybackFinished]


def test_late_packet_counts_as_underrun_r39() -> None:
    session_now = [0.0]
    session = Session(limits(), lambda: session_now[0])
    session.handle(AddText("xxx"))
    session.handle(EndUtterance())
    session.handle(PacketReceived(FIRST, packet(0, 1)))
    assert [type(session.next_output()) for _ in range(2)] == [AudioStart, AudioPacket]
    session_now[0] = 0.130  # 50 ms after the end of the first packet
    session.handle(PacketReceived(FIRST, packet(FRAME, 1, last=True)))
    for _ in range(2):
        session.next_output()
    session_now[0] = 0.3
    played = session.next_output()
    assert isinstance(played, PlaybackFinished)
    assert played.underrun_s == pytest.approx(0.05, abs=0.0011)


# --- end of utterance and session ------------------------------------------------------------------------------------


def test_failure_is_reported_and_next_utterance_is_complete() -> None:
    world = World(limits(), speed=1)
    bad = world.speak("x" * 10)
    good = world.speak("y" * 4)
    world.run(200)
    world.streams[bad].cancelled = True
    world.handle(StreamFailed(bad, NonFiniteError("NaN")))
    world.run_until_idle()
    (outcome,) = outcomes(world, bad)
    assert isinstance(outcome, UtteranceFailed)
    assert world.device.heard[-1] == (good, 0, 4 * FRAME)


def test_close_input_sends_remaining_audio_and_closes_once() -> None:
    world = World(limits(), speed=10)
    world.handle(AddText("x" * 5))
    world.handle(CloseInput())
    with pytest.raises(StateError, match="closing cannot take AddText"):
        world.handle(AddText("more"))
    world.run(1000)
    assert world.device.heard == [(FIRST, 0, 5 * FRAME)]
    assert isinstance(world.outputs[-1], SessionClosed)
    assert len(world.outputs_of_type(SessionClosed)) == 1
    world.handle(ClockTick())
    world.handle(Disconnect())


def test_disconnect_cancels_all_streams_and_sends_nothing_more() -> None:
    world = World(limits(), speed=2)
    world.speak("x" * 50)
    world.handle(AddText("half"))
    world.run(500)
    sent = len(world.outputs)
    world.handle(Disconnect())
    world.handle(PacketReceived(FIRST, packet(world.streams[FIRST].frames * FRAME, 1)))
    assert [stream.cancelled for stream in world.streams.values()] == [True, True]
    assert len(world.outputs) == sent


EVENTS = st.one_of(
    st.builds(AddText, st.text("ab ", max_size=6), st.booleans()),
    st.builds(EndUtterance),
    st.builds(Interrupt),
    st.builds(CloseInput),
    st.builds(PlaybackAck, st.integers(0, 4).map(UtteranceId), st.integers(0, 2000)),
    st.integers(1, 300),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.integers(1, 10))
def test_random_events_keep_order_and_single_outcome(events: list[SessionEvent | int], speed: int) -> None:
    """Rejected events change nothing; each utterance has at most one outcome; audio plays in order and once."""
    world = World(limits(buffer_ms=400, lead_ms=160), speed=speed)
    rejected = 0
    for event in events:
        try:
            world.run(event) if isinstance(event, int) else world.handle(event)
        except (StateError, InputError):
            rejected += 1
    assert rejected <= len(events)
    for utterance_id in world.streams:
        assert len(outcomes(world, utterance_id)) <= 1
    heard = world.device.heard
    assert [h[0] for h in heard] == sorted(h[0] for h in heard)
    assert all(first == 0 for _, first, _ in heard)
    assert len({h[0] for h in heard}) == len(heard)


def test_interruption_report_has_exactly_the_acknowledged_position() -> None:
    """Also if time passes between the acknowledgement and the report: here, with every read of the clock."""
    reads = itertools.count()
    session = Session(limits(), lambda: 0.001 * next(reads))
    session.handle(AddText("Some words."))
    session.handle(EndUtterance())
    session.handle(PacketReceived(FIRST, packet(0, 20, last=True)))
    while not isinstance(output := session.next_output(), AudioPacket):
        assert output is not None
    session.handle(Interrupt((PlaybackAck(FIRST, FRAME),)))
    cancelled = session.next_output()
    assert isinstance(cancelled, Cancelled)
    assert [report.played_samples for report in cancelled.reports] == [FRAME]
