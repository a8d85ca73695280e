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
    Interrupted,
    Leave,
    PacketCame,
    Played,
    PlayedBy,
    SessionEvent,
    Stopped,
    StreamFailed,
    TimePassed,
    UtteranceId,
    Write,
)
from legato.session.machine import Session
from legato.session.playback import Playback
from tests.session.world import FRAME, World, limits, packet

FIRST = UtteranceId(0)


def outcomes(world: World, utterance: UtteranceId) -> list[Played | Interrupted | Failed]:
    """Everything that says how an utterance ended."""
    found: list[Played | Interrupted | Failed] = []
    for item in world.items:
        if isinstance(item, Played | Failed) and item.utterance == utterance:
            found.append(item)
        if isinstance(item, Stopped):
            found += [each for each in item.utterances if each.utterance == utterance]
    return found


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


# --- barge-in --------------------------------------------------------------------------------------------------------


def test_an_interrupt_clears_here_and_at_the_device_r33() -> None:
    """Engine at ten times real time, a device with two seconds of its own."""
    world = World(limits(buffer_ms=4000, lead_ms=2000), speed=10)
    old = world.say("x" * 100)
    world.run(1000)
    assert world.device.most_held > 1000
    world.take(Interrupt())
    heard = world.device.heard_of(old)
    world.run(3000)
    assert world.device.heard_of(old) == heard
    assert world.streams[old].cancelled


def test_control_without_clearing_the_queue_the_old_utterance_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    world = World(limits(buffer_ms=4000, lead_ms=200), speed=10)
    old = world.say("x" * 100)
    world.run(1000)
    monkeypatch.setattr(Playback, "clear", lambda _: [])
    world.take(Interrupt())
    heard = world.device.heard_of(old)
    world.run(1000)
    assert world.device.heard_of(old) > heard


def test_late_packets_of_an_interrupted_utterance_are_dropped() -> None:
    world = World(limits())
    old = world.say("x" * 50)
    world.run(300)
    made = world.streams[old].frames
    new = world.say("y" * 3, replaces=True)
    world.take(PacketCame(old, packet(made * FRAME, 1)))
    world.take(PacketCame(old, packet((made + 1) * FRAME, 0, last=True)))
    world.run_out()
    after = [item for item in world.items[world.items.index(world.of(Stopped)[0]) :] if isinstance(item, Audio)]
    assert {item.utterance for item in after} == {new}
    assert world.device.heard[-1] == (new, 0, 3 * FRAME)


@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
def test_an_interrupt_at_the_very_end_has_one_definite_outcome_r36(offset_ms: int) -> None:
    for frames in range(1, 68):
        world = World(limits(), speed=1000, step_ms=100)
        utterance = world.say("x" * frames)
        world.run(1)  # the first packets are there
        world.run(frames * FRAME + offset_ms)
        world.take(Interrupt())
        (outcome,) = outcomes(world, utterance)
        given_to_device = world.device.heard_of(utterance)
        if isinstance(outcome, Interrupted):
            assert outcome.played_samples == given_to_device < frames * FRAME == outcome.sent_samples
        else:
            assert isinstance(outcome, Played)
            assert outcome.samples == given_to_device == frames * FRAME
        assert world.session.idle


def test_play_stop_play_a_hundred_times_r37() -> None:
    world = World(limits(buffer_ms=400), speed=5)
    world.take(Interrupt())  # before anything was begun
    for turn in range(100):
        world.say("x" * 10)
        world.run(turn % 90)
        world.take(Interrupt())
        world.take(Interrupt())  # twice
    last = world.say("y" * 10)
    world.run_out()
    assert world.device.heard[-1] == (last, 0, 10 * FRAME)
    assert len(world.of(Stopped)) == 201


def test_a_stop_from_inside_the_sending_loop_leaves_the_next_play_complete_r37() -> None:
    world = World(limits(), speed=10)
    old = world.say("x" * 10)
    world.run(8)
    world.session.take(PacketCame(old, packet(world.streams[old].frames * FRAME, 1)))
    assert isinstance(world.session.pull()[0], Audio)
    world.take(Interrupt())
    world.streams[old].cancelled = True
    new = world.say("y" * 5)
    world.run_out()
    assert world.device.heard[-1] == (new, 0, 5 * FRAME)


def test_replacing_speaks_over_what_plays_and_what_waits() -> None:
    world = World(limits(), speed=10)
    world.say("a" * 20)
    world.say("b" * 20)
    world.run(100)
    new = world.say("c" * 5, replaces=True)
    world.run_out()
    assert [h[0] for h in world.device.heard] == [0, new]
    (stopped,) = world.of(Stopped)
    assert isinstance(stopped, Stopped)
    assert [each.utterance for each in stopped.utterances] == [0, 1]
    assert stopped.utterances[1].played_samples == 0


# --- acknowledgements ------------------------------------------------------------------------------------------------


def test_what_the_client_acknowledges_with_the_interruption_is_what_is_reported() -> None:
    world = World(limits(), speed=10)
    utterance = world.say("x" * 50)
    world.run(1000)
    world.take(Interrupt((Acknowledged(utterance, 777),)))
    (outcome,) = outcomes(world, utterance)
    assert isinstance(outcome, Interrupted)
    assert (outcome.played_samples, outcome.played_by) == (777, PlayedBy.ACKNOWLEDGED)


def test_the_clock_goes_on_from_the_last_acknowledgement() -> None:
    world = World(limits(), speed=10)
    utterance = world.say("x" * 50)
    world.run(1000)
    world.take(Acknowledged(utterance, 600))
    world.run(100)
    world.take(Interrupt())
    (outcome,) = outcomes(world, utterance)
    assert isinstance(outcome, Interrupted)
    assert (outcome.played_samples, outcome.played_by) == (700, PlayedBy.CLOCK)


def test_a_client_that_acknowledges_decides_when_it_heard_the_end() -> None:
    world = World(limits(), speed=10)
    utterance = world.say("x" * 5)
    world.run(100)
    world.take(Acknowledged(utterance, 10))
    world.run(600)
    assert not world.of(Played)
    world.take(Acknowledged(utterance, 5 * FRAME))
    assert len(world.of(Played)) == 1
    silent = world.say("y" * 5)
    world.run(5 * FRAME + 1000)
    assert len(world.of(Played)) == 1
    world.run(1500)  # the grace is over: a client that fell silent holds nothing up
    assert [type(each) for each in outcomes(world, silent)] == [Played]


def test_impossible_acknowledgements_are_refused_by_name() -> None:
    world = World(limits(), speed=10)
    utterance = world.say("x" * 50)
    world.run(100)
    with pytest.raises(InputError, match=r"only .* samples of utterance 0 were sent") as caught:
        world.take(Acknowledged(utterance, 10**9))
    assert caught.value.field == "played_through_sample"
    with pytest.raises(StateError, match="there is no utterance 7"):
        world.take(Interrupt((Acknowledged(UtteranceId(7), 1),)))
    assert not world.of(Stopped)


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


def test_finish_plays_what_is_there_and_closes_once() -> None:
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
