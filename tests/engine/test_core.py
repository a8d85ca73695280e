"""Engine steps with a scripted talker: stop conditions, cancel, failures, and isolation of other streams."""

from __future__ import annotations

import numpy as np
import pytest

from legato.engine.flow_control import UNLIMITED, paced
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark
from legato.errors import BadCodeError, GenerationError, NonFiniteError, TextTooLongError, UnspeakableTextError
from legato.text.budget import frame_budget
from legato.types import FinishReason, Frame
from tests.engine.harness import SHORT, Harness
from tests.models.tiny_talker import CODEBOOKS, CODES

Line = Frame | FinishReason | GenerationError


def frame_of(seed: int, number: int) -> Frame:
    """Frames without long repetitions."""
    return tuple((7 * seed + 3 * number + number * number // 5 + 11 * book) % CODES for book in range(CODEBOOKS))


def stops_at(stops: dict[int, int]) -> object:
    def script(seed: int, number: int) -> Line:
        return FinishReason.EOS if number >= stops.get(seed, 10**9) else frame_of(seed, number)

    return script


def harness(stops: dict[int, int], **options: object) -> Harness:
    return Harness(stops_at(stops), **options)  # type: ignore[arg-type]


def test_each_row_stops_at_its_own_frame_and_leaves_the_batch() -> None:
    h = harness({1: 5, 2: 40, 3: 12})
    received = [h.submit("a text of some length, that may take its time", seed=seed)[1] for seed in (1, 2, 3)]
    while not received[0].packets or not received[0].packets[-1].last:
        h.step()
    steps = h.runner.frames_sampled
    assert not received[1].packets[-1].last
    h.run()
    assert [each.frames for each in received] == [5, 40, 12]
    assert [len(each.samples) for each in received] == [5 * 24, 40 * 24, 12 * 24]
    assert all(each.reason is FinishReason.EOS for each in received)
    assert h.runner.frames_sampled - steps < 35 + 7 + 3  # a finished row does not step any more
    h.assert_all_slots_free()


def test_packets_follow_packet_frames_and_number_their_samples() -> None:
    h = harness({0: 11})
    _, received = h.submit("hello there", packets=(1, 2, 4))
    h.run()
    assert [packet.frames for packet in received.packets] == [1, 2, 4, 4, 0]
    assert [packet.first_sample for packet in received.packets] == [0, 24, 72, 168, 264]
    assert [packet.last for packet in received.packets] == [False] * 4 + [True]
    _, received = h.submit("hello there", packets=(4,), max_frames=6)
    h.run()
    assert [(packet.frames, packet.last) for packet in received.packets] == [(4, False), (2, True)]
    assert received.reason is FinishReason.MAX_FRAMES


def test_model_that_never_stops_ends_at_the_text_budget() -> None:
    h = harness({0: 9, 1: 10**9})
    _, other = h.submit("short", seed=0)
    _, received = h.submit("1次", seed=1)
    h.run()
    assert received.reason is FinishReason.BUDGET
    assert received.frames == frame_budget("1次")
    assert received.frames * 0.08 < 4.0
    assert other.frames == 9
    h.assert_all_slots_free()


def test_max_frames_overrides_smaller_and_larger_budget() -> None:
    h = harness({0: 200}, positions=600)
    _, received = h.submit("tiny", max_frames=500)
    h.run()
    assert received.frames == 200
    _, received = h.submit("tiny", max_frames=3, seed=1)
    h.run()
    assert (received.frames, received.reason) == (3, FinishReason.MAX_FRAMES)


def test_watchdog_ends_repeating_frames() -> None:
    h = Harness(lambda _seed, number: frame_of(0, number % 3), positions=2000)
    _, received = h.submit("a long text " * 60)
    h.run()
    assert received.reason is FinishReason.REPEAT
    h.assert_all_slots_free()


@pytest.mark.parametrize("bad", [CODES, CODES + 5, -1])
def test_invalid_code_fails_only_its_own_stream(bad: int) -> None:
    def script(seed: int, number: int) -> Line:
        if seed == 1 and number == 4:
            return (1, 2, bad, 3, 4)
        return FinishReason.EOS if number >= 9 else frame_of(seed, number)

    alone = Harness(script, rows_per_call=1)
    _, solo = alone.submit("neighbour", seed=2)
    alone.run()
    h = Harness(script, rows_per_call=1)
    _, failing = h.submit("failing one", seed=1)
    _, other = h.submit("neighbour", seed=2)
    h.run()
    assert isinstance(failing.errors[0], BadCodeError)
    assert not any(packet.last for packet in failing.packets)
    assert np.array_equal(other.samples, solo.samples)
    h.assert_all_slots_free()


def test_non_finite_logits_fail_only_their_own_stream() -> None:
    def script(seed: int, number: int) -> Line:
        if seed == 1 and number == 3:
            return NonFiniteError("logits")
        return FinishReason.EOS if number >= 9 else frame_of(seed, number)

    h = Harness(script)
    _, failing = h.submit("failing one", seed=1)
    _, other = h.submit("neighbour", seed=2)
    h.run()
    assert [type(error) for error in failing.errors] == [NonFiniteError]
    assert other.frames == 9
    h.assert_all_slots_free()


def test_waiting_for_text_costs_no_compute() -> None:
    h = harness({0: 8})
    stream, received = h.submit("ab", ended=False)
    for _ in range(10):
        h.step()
    sequence = h.streams[0].sequences[0]
    assert sequence.state is SequenceState.WAITING_FOR_TEXT
    assert not h.kv.all_free  # it keeps its KV slot
    frames_before = h.runner.frames_sampled
    h.now_s += 5.0
    assert not h.step()
    assert h.runner.frames_sampled == frames_before == 2
    h.append(stream, "cdefgh")
    h.end(stream)
    h.run()
    assert received.frames == 8
    assert h.streams[0].timing.text_stall_s > 5.0
    h.assert_all_slots_free()


def test_cancel_in_every_state_releases_all_slots() -> None:
    states = {}
    for steps in range(14):
        h = harness({0: 12}, prefill_positions=3)
        stream, received = h.submit("abc", ended=steps > 9)
        for _ in range(steps):
            h.step()
        for sequence in h.streams[0].sequences:
            states[sequence.state] = True
        was_over = bool(received.packets) and received.packets[-1].last
        frames_before, packets = h.runner.frames_sampled, len(received.packets)
        h.cancel(stream)
        h.cancel(stream)
        h.step()
        assert h.runner.frames_sampled == frames_before
        assert len(received.packets) == packets + (not was_over)
        assert was_over or received.reason is FinishReason.CANCELLED
        h.cancel(stream)
        h.run()
        h.assert_all_slots_free()
    assert {SequenceState.PREFILLING, SequenceState.RUNNING, SequenceState.WAITING_FOR_TEXT} <= set(states)


def test_cancelled_stream_stops_computing_and_others_go_on() -> None:
    h = harness({0: 30, 1: 30})
    stream, received = h.submit("one two three four five", seed=0)
    _, other = h.submit("one two three four five", seed=1)
    for _ in range(8):
        h.step()
    decoded = received.frames
    before = h.runner.frames_sampled
    h.cancel(stream)
    h.step()
    assert h.runner.frames_sampled == before + 1  # the frame of the other stream
    h.run()
    assert received.frames == decoded
    assert other.frames == 30
    h.assert_all_slots_free()


def test_flow_control_limits_frames_ahead_of_client() -> None:
    h = harness({0: 50})
    stream, received = h.submit("some text that lasts for a good while", packets=(1,), flow_control=paced(10))
    h.run()
    assert h.streams[0].frames == received.frames == 10
    h.report_consumed(stream, 7)
    h.run()
    assert received.frames == 17
    h.set_flow_control(stream, UNLIMITED)
    h.run()
    assert received.frames == 50


def test_segments_share_one_codec_history() -> None:
    text = "First words. Second words. Third words."
    h = harness({0: 7}, segments=SHORT)
    _, received = h.submit(text)
    h.run()
    assert len(h.streams[0].sequences) == 3
    assert received.frames == 21
    whole = h.codec_runner.decode_whole([frame_of(0, number) for _ in range(3) for number in range(7)])
    np.testing.assert_allclose(received.samples, whole, atol=2e-5)
    reset = np.concatenate([h.codec_runner.decode_whole([frame_of(0, number) for number in range(7)])] * 3)
    assert np.abs(received.samples - reset).max() > 1e-2  # the negative control: histories reset between segments
    h.assert_all_slots_free()


def test_next_segment_is_prefilled_before_current_one_ends() -> None:
    h = harness({0: 20}, segments=SHORT, streams=1)
    h.submit("First words. Second words.")
    while h.streams[0].sequences == [] or h.streams[0].sequences[0].frames < 10:
        h.step()
    first, second = h.streams[0].sequences
    assert first.state is SequenceState.RUNNING
    assert second.state is SequenceState.RUNNING
    assert second.slot.computed_positions == len(second.slot.plan.rows)
    assert second.frames == 0
    h.run()
    h.assert_all_slots_free()


def test_request_that_cannot_fit_is_refused_before_any_compute() -> None:
    h = harness({0: 3}, positions=64)
    _, received = h.submit("fits", max_frames=100)
    h.run()
    assert isinstance(received.errors[0], TextTooLongError)
    assert "64" in str(received.errors[0])
    assert received.errors[0].field == "max_frames"
    assert h.runner.frames_sampled == 0
    h.assert_all_slots_free()


def test_text_without_speech_fails_and_engine_goes_on() -> None:
    h = harness({0: 3})
    for text in ("", "  ", "\n"):
        _, received = h.submit(text)
        h.run()
        assert isinstance(received.errors[0], UnspeakableTextError)
    _, received = h.submit("fine")
    h.run()
    assert received.frames == 3
    h.assert_all_slots_free()


def test_streams_beyond_slots_wait_and_are_all_served() -> None:
    h = harness({seed: 4 + seed for seed in range(6)}, streams=2)
    received = [h.submit("some text for all", seed=seed)[1] for seed in range(6)]
    h.run()
    assert [each.frames for each in received] == [4, 5, 6, 7, 8, 9]
    h.assert_all_slots_free()


def test_marks_are_in_order_and_stages_sum_to_first_packet() -> None:
    h = harness({0: 6})
    h.submit("some text")
    h.run()
    timing = h.streams[0].timing
    times = [timing.marks[mark] for mark in Mark]
    assert times == sorted(times)
    assert sum(timing.stages_s().values()) == pytest.approx(timing.first_packet_s)


def test_marks_are_set_when_their_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of the model takes a time of its own, so a mark that is set before its work shows as a wrong stage."""
    h = harness({0: 8}, tick_s=0.0)
    seconds = {"prefill": 4.0, "sample_first_codes": 2.0, "predict_frames": 1.0}

    def take(name: str, seconds: float) -> None:
        original = getattr(h.runner, name)

        def timed(*arguments: object) -> object:
            done = original(*arguments)
            h.now_s += seconds if arguments[0] else 0.0
            return done

        monkeypatch.setattr(h.runner, name, timed)

    for name, value in seconds.items():
        take(name, value)
    decode = h.codec_runner.decode

    def decode_timed(*arguments: object, **options: object) -> object:
        done = decode(*arguments, **options)  # type: ignore[arg-type]
        h.now_s += 0.5
        return done

    monkeypatch.setattr(h.codec_runner, "decode", decode_timed)
    h.submit("hello there", packets=(1,))
    h.run()
    stages = h.streams[0].timing.stages_s()
    assert stages["prefill"] == pytest.approx(4.0)
    assert stages["first code"] == pytest.approx(2.0)
    assert stages["first frame"] == pytest.approx(1.0)
    assert stages["packet fill"] == pytest.approx(0.0)
    assert stages["codec"] == pytest.approx(0.5)


@pytest.mark.parametrize("limit", [7, 10, 13])
def test_max_frames_counts_the_whole_stream_not_each_segment(limit: int) -> None:
    """Three segments of five frames each: the limit falls into the second or the third."""
    h = harness({1: 5}, segments=SHORT)
    _, received = h.submit("Ab cd ef. Gh ij kl. Mn op qr.", seed=1, max_frames=limit)
    h.run()
    assert len(h.streams[0].sequences) >= 2
    assert received.frames == limit
    assert received.reason is FinishReason.MAX_FRAMES
    h.assert_all_slots_free()
