"""Interruption: a stopped utterance stays stopped and has exactly one outcome, and the next one is complete.

Test names end with the row of docs/faults.md that they cover (R33, R36, R37).
"""

from __future__ import annotations

import pytest

from legato.errors import InputError, StateError
from legato.session.events import (
    AudioPacket,
    Cancelled,
    Interrupt,
    InterruptionReport,
    PacketReceived,
    PlaybackAck,
    PlaybackFinished,
    PositionSource,
    UtteranceId,
)
from legato.session.playback import Playback
from tests.session.world import FRAME, World, limits, outcomes, packet

# --- barge-in --------------------------------------------------------------------------------------------------------


def test_interrupt_clears_queue_and_device_r33() -> None:
    """The engine is ten times faster than real time, and the device buffers two seconds."""
    world = World(limits(buffer_ms=4000, lead_ms=2000), speed=10)
    old = world.speak("x" * 100)
    world.run(1000)
    assert world.device.max_buffered_samples > 1000
    world.handle(Interrupt())
    heard = world.device.heard_of(old)
    world.run(3000)
    assert world.device.heard_of(old) == heard
    assert world.streams[old].cancelled


def test_control_old_utterance_continues_if_queue_is_not_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    world = World(limits(buffer_ms=4000, lead_ms=200), speed=10)
    old = world.speak("x" * 100)
    world.run(1000)
    monkeypatch.setattr(Playback, "clear", lambda _: [])
    world.handle(Interrupt())
    heard = world.device.heard_of(old)
    world.run(1000)
    assert world.device.heard_of(old) > heard


def test_late_packets_of_interrupted_utterance_are_dropped() -> None:
    world = World(limits())
    old = world.speak("x" * 50)
    world.run(300)
    frames = world.streams[old].frames
    new = world.speak("y" * 3, replaces=True)
    world.handle(PacketReceived(old, packet(frames * FRAME, 1)))
    world.handle(PacketReceived(old, packet((frames + 1) * FRAME, 0, last=True)))
    world.run_until_idle()
    after_cancel = world.outputs[world.outputs.index(world.outputs_of_type(Cancelled)[0]) :]
    assert {output.utterance_id for output in after_cancel if isinstance(output, AudioPacket)} == {new}
    assert world.device.heard[-1] == (new, 0, 3 * FRAME)


@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
def test_interrupt_at_end_of_playback_has_one_outcome_r36(offset_ms: int) -> None:
    for frames in range(1, 68):
        world = World(limits(), speed=1000, step_ms=100)
        utterance_id = world.speak("x" * frames)
        world.run(1)  # the first packets have arrived
        world.run(frames * FRAME + offset_ms)
        world.handle(Interrupt())
        (outcome,) = outcomes(world, utterance_id)
        heard = world.device.heard_of(utterance_id)
        if isinstance(outcome, InterruptionReport):
            assert outcome.played_samples == heard < frames * FRAME == outcome.sent_samples
        else:
            assert isinstance(outcome, PlaybackFinished)
            assert outcome.samples == heard == frames * FRAME
        assert world.session.idle


def test_repeated_play_and_stop_r37() -> None:
    world = World(limits(buffer_ms=400), speed=5)
    world.handle(Interrupt())  # nothing to stop yet
    for repetition in range(100):
        world.speak("x" * 10)
        world.run(repetition % 90)
        world.handle(Interrupt())
        world.handle(Interrupt())  # twice
    last = world.speak("y" * 10)
    world.run_until_idle()
    assert world.device.heard[-1] == (last, 0, 10 * FRAME)
    assert len(world.outputs_of_type(Cancelled)) == 201


def test_interrupt_while_sending_leaves_next_utterance_complete_r37() -> None:
    world = World(limits(), speed=10)
    old = world.speak("x" * 10)
    world.run(8)
    world.session.handle(PacketReceived(old, packet(world.streams[old].frames * FRAME, 1)))
    assert isinstance(world.session.next_output(), AudioPacket)
    world.handle(Interrupt())
    world.streams[old].cancelled = True
    new = world.speak("y" * 5)
    world.run_until_idle()
    assert world.device.heard[-1] == (new, 0, 5 * FRAME)


def test_replace_interrupts_playing_and_queued_utterances() -> None:
    world = World(limits(), speed=10)
    world.speak("a" * 20)
    world.speak("b" * 20)
    world.run(100)
    new = world.speak("c" * 5, replaces=True)
    world.run_until_idle()
    assert [h[0] for h in world.device.heard] == [0, new]
    (cancelled,) = world.outputs_of_type(Cancelled)
    assert isinstance(cancelled, Cancelled)
    assert [report.utterance_id for report in cancelled.reports] == [0, 1]
    assert cancelled.reports[1].played_samples == 0


# --- acknowledgements ------------------------------------------------------------------------------------------------


def test_position_sent_with_interrupt_is_reported() -> None:
    world = World(limits(), speed=10)
    utterance_id = world.speak("x" * 50)
    world.run(1000)
    world.handle(Interrupt((PlaybackAck(utterance_id, 777),)))
    (outcome,) = outcomes(world, utterance_id)
    assert isinstance(outcome, InterruptionReport)
    assert (outcome.played_samples, outcome.position_source) == (777, PositionSource.ACKNOWLEDGED)


def test_clock_continues_from_last_acknowledgement() -> None:
    world = World(limits(), speed=10)
    utterance_id = world.speak("x" * 50)
    world.run(1000)
    world.handle(PlaybackAck(utterance_id, 600))
    world.run(100)
    world.handle(Interrupt())
    (outcome,) = outcomes(world, utterance_id)
    assert isinstance(outcome, InterruptionReport)
    assert (outcome.played_samples, outcome.position_source) == (700, PositionSource.CLOCK)


def test_acknowledging_client_determines_end_of_playback() -> None:
    world = World(limits(), speed=10)
    utterance_id = world.speak("x" * 5)
    world.run(100)
    world.handle(PlaybackAck(utterance_id, 10))
    world.run(600)
    assert not world.outputs_of_type(PlaybackFinished)
    world.handle(PlaybackAck(utterance_id, 5 * FRAME))
    assert len(world.outputs_of_type(PlaybackFinished)) == 1
    unacknowledged = world.speak("y" * 5)
    world.run(5 * FRAME + 1000)
    assert len(world.outputs_of_type(PlaybackFinished)) == 1
    world.run(1500)  # after the grace period a client that stopped acknowledging blocks nothing
    assert [type(each) for each in outcomes(world, unacknowledged)] == [PlaybackFinished]


def test_impossible_acknowledgements_are_rejected() -> None:
    world = World(limits(), speed=10)
    utterance_id = world.speak("x" * 50)
    world.run(100)
    with pytest.raises(InputError, match=r"only .* samples of utterance 0 were sent") as caught:
        world.handle(PlaybackAck(utterance_id, 10**9))
    assert caught.value.field == "played_through_sample"
    with pytest.raises(StateError, match="there is no utterance 7"):
        world.handle(Interrupt((PlaybackAck(UtteranceId(7), 1),)))
    assert not world.outputs_of_type(Cancelled)
