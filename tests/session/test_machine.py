"""The session machine: order, bounds, barge-in, one definite outcome for every utterance. Fake clock, fake packets.

Cases of others are named by their row (R33, R36, R37, R38, R39) in the docs of known faults.
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
    Acknowledged,
    Audio,
    Begins,
    Closed,
    Ends,
    EndText,
    Failed,
    Finish,
    Interrupt,
    Leave,
    PacketCame,
    Played,
    SessionEvent,
    StreamFailed,
    TimePassed,
    UtteranceId,
    Write,
)
from legato.session.machine import Session
from tests.session.world import FRAME, World, limits, outcomes, packet

FIRST = UtteranceId(0)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_what_is_not_in_a_table_is_an_error_that_names_state_and_event() -> None:
    for state, event in itertools.product(states.UtteranceState, states.UtteranceEvent):
        if (state, event) in states.UTTERANCE_TRANSITIONS:
            states.next_utterance(state, event)
        else:
            with pytest.raises(StateError, match=f"{state.value}.*{event.value}"):
                states.next_utterance(state, event)
    kinds = get_args(SessionEvent)
    allowed = {(state, kind) for state in states.SessionState for kind in kinds} & set(states.SESSION_TRANSITIONS)
    assert (states.SessionState.CLOSED, Write) not in allowed
    with pytest.raises(StateError, match=r"closed cannot take Write"):
        states.next_session(states.SessionState.CLOSED, Write("a"))
    with pytest.raises(StateError, match="no utterance is open"):
        World(limits()).take(EndText())


# --- order and bounds ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    speed=st.sampled_from([1, 3, 10]),
    packet_frames=st.integers(1, 4),
    lead_ms=st.sampled_from([0, 100, 400]),
    start_ms=st.sampled_from([0, 200]),
)
def test_utterances_are_heard_whole_in_order_within_their_bounds(
    lengths: list[int], speed: int, packet_frames: int, lead_ms: int, start_ms: int
) -> None:
    playback = limits(buffer_ms=640, lead_ms=lead_ms, start_ms=start_ms)
    world = World(playback, speed=speed, packet_frames=packet_frames)
    said = [world.say("x" * length) for length in lengths]
    while not world.session.idle:
        assert world.now_ms < 30_000
        made_ahead = sum(stream.frames for stream in world.streams.values()) * FRAME - sum(
            h[2] for h in world.device.heard
        )
        assert made_ahead <= 640 + packet_frames * FRAME * len(lengths)
        world.run(8)
    assert world.device.heard == [(u, 0, n * FRAME) for u, n in zip(said, lengths, strict=True)]
    if lead_ms:
        assert world.device.most_held <= max(lead_ms, start_ms + packet_frames * FRAME, packet_frames * FRAME)
    kinds = [type(item) for item in world.items if isinstance(item, Begins | Ends) and item.utterance == said[-1]]
    assert kinds == [Begins, Ends]
    for utterance, length in zip(said, lengths, strict=True):
        (outcome,) = outcomes(world, utterance)
        assert isinstance(outcome, Played)
        assert outcome.samples == length * FRAME


def test_there_is_no_gap_between_utterances_and_the_second_waits_for_the_first() -> None:
    world = World(limits(buffer_ms=400), speed=4)
    world.say("x" * 20)
    world.say("y" * 20)
    world.run(60)
    assert world.streams[UtteranceId(1)].frames == 0
    silent_before = world.device.silent
    world.run_out()
    assert world.device.silent - silent_before < world.step_ms  # what was left of the last step
    assert [h[0] for h in world.device.heard] == [0, 1]


def test_generation_runs_ahead_while_the_consumer_plays_r38() -> None:
    """Total is the longer of making and playing, never their sum; the seams have no hole."""
    world = World(limits(buffer_ms=2000), speed=2, packet_frames=4)
    world.say("x" * 100)
    world.run_out()
    assert world.now_ms <= 100 * FRAME + 4 * FRAME // 2 + 2
    assert world.device.silent <= 4 * FRAME // 2 + 2


def test_text_in_pieces_goes_into_one_utterance_until_it_is_ended() -> None:
    world = World(limits())
    for piece in ("ab", "c", "de"):
        world.take(Write(piece))
    assert world.streams[FIRST].text == "abcde"
    assert not world.streams[FIRST].ended
    world.take(EndText())
    world.take(Write("next"))
    assert world.streams[UtteranceId(1)].text == "next"


def test_what_the_engine_ends_early_drops_the_text_that_still_comes() -> None:
    world = World(limits())
    world.take(Write("a"))
    world.streams[FIRST].over = True
    world.take(PacketCame(FIRST, packet(0, 1, last=True)))
    world.run(200)
    world.take(Write("too late"))
    assert world.streams[FIRST].text == "a"
    world.take(EndText())
    assert world.say("b") == 1
    world.run_out()
    assert [h[0] for h in world.device.heard] == [0, 1]


def test_the_end_is_told_even_when_the_device_has_played_it_first() -> None:
    """A socket that takes the last packet slowly must not cost the client its `Ends`."""
    now = [0.0]
    session = Session(limits(), lambda: now[0])
    session.take(Write("x"))
    session.take(EndText())
    session.take(PacketCame(FIRST, packet(0, 1, last=True)))
    assert [type(item) for item in session.pull() + session.pull()] == [Begins, Audio]
    now[0] = 5.0
    assert [type(item) for item in session.pull() + session.pull()] == [Ends, Played]


def test_underrun_is_counted_where_audio_came_late_r39() -> None:
    session_now = [0.0]
    session = Session(limits(), lambda: session_now[0])
    session.take(Write("xxx"))
    session.take(EndText())
    session.take(PacketCame(FIRST, packet(0, 1)))
    assert [type(item) for item in session.pull() + session.pull()] == [Begins, Audio]
    session_now[0] = 0.130  # 50 ms after the first packet was played out
    session.take(PacketCame(FIRST, packet(FRAME, 1, last=True)))
    session.pull(), session.pull()
    session_now[0] = 0.3
    (played,) = session.pull()
    assert isinstance(played, Played)
    assert played.underrun_s == pytest.approx(0.05, abs=0.0011)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_failed_utterance_is_told_and_its_neighbour_is_whole() -> None:
    world = World(limits(), speed=1)
    bad = world.say("x" * 10)
    good = world.say("y" * 4)
    world.run(200)
    world.streams[bad].cancelled = True
    world.take(StreamFailed(bad, NonFiniteError("NaN")))
    world.run_out()
    (outcome,) = outcomes(world, bad)
    assert isinstance(outcome, Failed)
    assert world.device.heard[-1] == (good, 0, 4 * FRAME)


def test_finish_sends_what_is_there_and_closes_once() -> None:
    world = World(limits(), speed=10)
    world.take(Write("x" * 5))
    world.take(Finish())
    with pytest.raises(StateError, match="closing cannot take Write"):
        world.take(Write("more"))
    world.run(1000)
    assert world.device.heard == [(FIRST, 0, 5 * FRAME)]
    assert isinstance(world.items[-1], Closed)
    assert len(world.of(Closed)) == 1
    world.take(TimePassed())
    world.take(Leave())


def test_a_client_that_leaves_has_every_stream_cancelled_and_nothing_more_is_sent() -> None:
    world = World(limits(), speed=2)
    world.say("x" * 50)
    world.take(Write("half"))
    world.run(500)
    sent = len(world.items)
    world.take(Leave())
    world.take(PacketCame(FIRST, packet(world.streams[FIRST].frames * FRAME, 1)))
    assert [stream.cancelled for stream in world.streams.values()] == [True, True]
    assert len(world.items) == sent


EVENTS = st.one_of(
    st.builds(Write, st.text("ab ", max_size=6), st.booleans()),
    st.builds(EndText),
    st.builds(Interrupt),
    st.builds(Finish),
    st.builds(Acknowledged, st.integers(0, 4).map(UtteranceId), st.integers(0, 2000)),
    st.integers(1, 300),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.integers(1, 10))
def test_any_order_of_events_keeps_the_promises(events: list[SessionEvent | int], speed: int) -> None:
    """What is refused changes nothing; each utterance has at most one outcome; nothing plays out of order or twice."""
    world = World(limits(buffer_ms=400, lead_ms=160), speed=speed)
    refused = 0
    for event in events:
        try:
            world.run(event) if isinstance(event, int) else world.take(event)
        except (StateError, InputError):
            refused += 1
    assert refused <= len(events)
    for utterance in world.streams:
        assert len(outcomes(world, utterance)) <= 1
    heard = world.device.heard
    assert [h[0] for h in heard] == sorted(h[0] for h in heard)
    assert all(first == 0 for _, first, _ in heard)
    assert len({h[0] for h in heard}) == len(heard)
