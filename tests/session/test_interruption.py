"""Barge-in: what is stopped stays stopped, has one definite outcome, and the next utterance is whole.

Cases of others are named by their row (R33, R36, R37) in the docs of known faults.
"""

from __future__ import annotations

import pytest

from legato.errors import InputError, StateError
from legato.session.events import (
    Acknowledged,
    Audio,
    Interrupt,
    Interrupted,
    PacketCame,
    Played,
    PlayedBy,
    Stopped,
    UtteranceId,
)
from legato.session.playback import Playback
from tests.session.world import FRAME, World, limits, outcomes, packet

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
