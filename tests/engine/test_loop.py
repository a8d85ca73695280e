"""The loop with a scripted talker: who stops, who is cancelled, who fails, and that nobody else notices."""

from __future__ import annotations

import numpy as np
import pytest

from legato.engine.demand import UNLIMITED, paced
from legato.engine.sequence import SequenceState
from legato.engine.stats import Mark
from legato.errors import BadCodeError, GenerationError, NonFiniteError, TextTooLongError, UnspeakableTextError
from legato.flow import FinishReason, Frame
from legato.text.budget import frame_budget
from tests.engine.harness import SHORT, Harness
from tests.models.tiny_talker import CODEBOOKS, CODES

Line = Frame | FinishReason | GenerationError


def frame_of(seed: int, number: int) -> Frame:
    """Frames that never repeat for long."""
    return tuple((7 * seed + 3 * number + number * number // 5 + 11 * book) % CODES for book in range(CODEBOOKS))


def stops_at(stops: dict[int, int]) -> object:
    def script(seed: int, number: int) -> Line:
        return FinishReason.EOS if number >= stops.get(seed, 10**9) else frame_of(seed, number)

    return script


def harness(stops: dict[int, int], **options: object) -> Harness:
    return Harness(stops_at(stops), **options)  # type: ignore[arg-type]


def test_each_row_of_a_batch_stops_at_its_own_frame_and_leaves_at_once() -> None:
    h = harness({1: 5, 2: 40, 3: 12})
    heard = [h.submit("a text of some length, that may take its time", seed=seed)[1] for seed in (1, 2, 3)]
    while not heard[0].packets or not heard[0].packets[-1].last:
        h.turn()
    steps = h.runner.frames_drawn
    assert not heard[1].packets[-1].last
    h.run()
    assert [each.frames for each in heard] == [5, 40, 12]
    assert [len(each.samples) for each in heard] == [5 * 24, 40 * 24, 12 * 24]
    assert all(each.reason is FinishReason.EOS for each in heard)
    assert h.runner.frames_drawn - steps < 35 + 7 + 3  # a finished row takes no more steps
    h.assert_balanced()


def test_packets_follow_the_ramp_and_number_their_samples() -> None:
    h = harness({0: 11})
    _, heard = h.submit("hello there", packets=(1, 2, 4))
    h.run()
    assert [packet.frames for packet in heard.packets] == [1, 2, 4, 4, 0]
    assert [packet.first_sample for packet in heard.packets] == [0, 24, 72, 168, 264]
    assert [packet.last for packet in heard.packets] == [False] * 4 + [True]
    _, heard = h.submit("hello there", packets=(4,), max_frames=6)
    h.run()
    assert [(packet.frames, packet.last) for packet in heard.packets] == [(4, False), (2, True)]
    assert heard.reason is FinishReason.MAX_FRAMES


def test_a_model_that_never_stops_ends_by_the_budget_of_its_text() -> None:
    h = harness({0: 9, 1: 10**9})
    _, neighbour = h.submit("short", seed=0)
    _, heard = h.submit("1次", seed=1)
    h.run()
    assert heard.reason is FinishReason.BUDGET
    assert heard.frames == frame_budget("1次")
    assert heard.frames * 0.08 < 4.0
    assert neighbour.frames == 9
    h.assert_balanced()


def test_the_callers_limit_wins_over_the_budget_in_both_directions() -> None:
    h = harness({0: 200}, positions=600)
    _, heard = h.submit("tiny", max_frames=500)
    h.run()
    assert heard.frames == 200
    _, heard = h.submit("tiny", max_frames=3, seed=1)
    h.run()
    assert (heard.frames, heard.reason) == (3, FinishReason.MAX_FRAMES)


def test_the_watchdog_ends_a_loop_and_says_so() -> None:
    h = Harness(lambda _seed, number: frame_of(0, number % 3), positions=2000)
    _, heard = h.submit("a long text " * 60)
    h.run()
    assert heard.reason is FinishReason.REPEAT
    h.assert_balanced()


@pytest.mark.parametrize("bad", [CODES, CODES + 5, -1])
def test_a_code_outside_its_codebook_fails_its_own_request_alone(bad: int) -> None:
    def script(seed: int, number: int) -> Line:
        if seed == 1 and number == 4:
            return (1, 2, bad, 3, 4)
        return FinishReason.EOS if number >= 9 else frame_of(seed, number)

    alone = Harness(script, rows_per_call=1)
    _, solo = alone.submit("neighbour", seed=2)
    alone.run()
    h = Harness(script, rows_per_call=1)
    _, failing = h.submit("failing one", seed=1)
    _, neighbour = h.submit("neighbour", seed=2)
    h.run()
    assert isinstance(failing.errors[0], BadCodeError)
    assert not any(packet.last for packet in failing.packets)
    assert np.array_equal(neighbour.samples, solo.samples)
    h.assert_balanced()


def test_not_finite_logits_fail_one_request_alone() -> None:
    def script(seed: int, number: int) -> Line:
        if seed == 1 and number == 3:
            return NonFiniteError("logits")
        return FinishReason.EOS if number >= 9 else frame_of(seed, number)

    h = Harness(script)
    _, failing = h.submit("failing one", seed=1)
    _, neighbour = h.submit("neighbour", seed=2)
    h.run()
    assert [type(error) for error in failing.errors] == [NonFiniteError]
    assert neighbour.frames == 9
    h.assert_balanced()


def test_text_that_has_not_come_is_waited_for_at_no_cost() -> None:
    h = harness({0: 8})
    stream, heard = h.submit("ab", ended=False)
    for _ in range(10):
        h.turn()
    sequence = h.streams[0].sequences[0]
    assert sequence.state is SequenceState.WAITING_FOR_TEXT
    assert not h.kv.balanced  # it keeps its positions
    drawn = h.runner.frames_drawn
    h.now_s += 5.0
    assert not h.turn()
    assert h.runner.frames_drawn == drawn == 2
    h.append(stream, "cdefgh")
    h.end(stream)
    h.run()
    assert heard.frames == 8
    assert h.streams[0].timing.later_text_wait_s > 5.0
    h.assert_balanced()


def test_cancel_in_every_state_gives_everything_back() -> None:
    states = {}
    for turns in range(14):
        h = harness({0: 12}, prefill_positions=3)
        stream, heard = h.submit("abc", ended=turns > 9)
        for _ in range(turns):
            h.turn()
        for sequence in h.streams[0].sequences:
            states[sequence.state] = True
        was_over = bool(heard.packets) and heard.packets[-1].last
        drawn, packets = h.runner.frames_drawn, len(heard.packets)
        h.cancel(stream)
        h.cancel(stream)
        h.turn()
        assert h.runner.frames_drawn == drawn
        assert len(heard.packets) == packets + (not was_over)
        assert was_over or heard.reason is FinishReason.CANCELLED
        h.cancel(stream)
        h.run()
        h.assert_balanced()
    assert {SequenceState.PREFILLING, SequenceState.RUNNING, SequenceState.WAITING_FOR_TEXT} <= set(states)


def test_a_cancelled_stream_computes_nothing_more_and_its_neighbour_goes_on() -> None:
    h = harness({0: 30, 1: 30})
    stream, heard = h.submit("one two three four five", seed=0)
    _, neighbour = h.submit("one two three four five", seed=1)
    for _ in range(8):
        h.turn()
    decoded = heard.frames
    before = h.runner.frames_drawn
    h.cancel(stream)
    h.turn()
    assert h.runner.frames_drawn == before + 1  # the neighbour's
    h.run()
    assert heard.frames == decoded
    assert neighbour.frames == 30
    h.assert_balanced()


def test_demand_bounds_how_far_a_stream_runs_ahead() -> None:
    h = harness({0: 50})
    stream, heard = h.submit("some text that lasts for a good while", packets=(1,), demand=paced(10))
    h.run()
    assert h.streams[0].frames == heard.frames == 10
    h.taken(stream, 7)
    h.run()
    assert heard.frames == 17
    h.demand(stream, UNLIMITED)
    h.run()
    assert heard.frames == 50


def test_segments_of_a_long_text_become_one_stream_with_one_codec_history() -> None:
    text = "First words. Second words. Third words."
    h = harness({0: 7}, segments=SHORT)
    _, heard = h.submit(text)
    h.run()
    assert len(h.streams[0].sequences) == 3
    assert heard.frames == 21
    whole = h.stage.decode_whole([frame_of(0, number) for _ in range(3) for number in range(7)])
    np.testing.assert_allclose(heard.samples, whole, atol=2e-5)
    torn = np.concatenate([h.stage.decode_whole([frame_of(0, number) for number in range(7)])] * 3)
    assert np.abs(heard.samples - torn).max() > 1e-2  # a history dropped between the segments would be heard
    h.assert_balanced()


def test_the_next_segment_is_prefilled_before_the_last_one_ends() -> None:
    h = harness({0: 20}, segments=SHORT, streams=1)
    h.submit("First words. Second words.")
    while h.streams[0].sequences == [] or h.streams[0].sequences[0].frames < 10:
        h.turn()
    first, second = h.streams[0].sequences
    assert first.state is SequenceState.RUNNING
    assert second.state is SequenceState.RUNNING
    assert second.seat.positions == len(second.seat.plan.rows)
    assert second.frames == 0
    h.run()
    h.assert_balanced()


def test_a_request_that_cannot_fit_is_refused_before_any_compute_and_with_numbers() -> None:
    h = harness({0: 3}, positions=64)
    _, heard = h.submit("fits", max_frames=100)
    h.run()
    assert isinstance(heard.errors[0], TextTooLongError)
    assert "64" in str(heard.errors[0])
    assert heard.errors[0].field == "max_frames"
    assert h.runner.frames_drawn == 0
    h.assert_balanced()


def test_nothing_to_speak_is_an_error_at_once_and_the_engine_goes_on() -> None:
    h = harness({0: 3})
    for text in ("", "  ", "\n"):
        _, heard = h.submit(text)
        h.run()
        assert isinstance(heard.errors[0], UnspeakableTextError)
    _, heard = h.submit("fine")
    h.run()
    assert heard.frames == 3
    h.assert_balanced()


def test_more_streams_than_slots_wait_their_turn_and_are_all_served() -> None:
    h = harness({seed: 4 + seed for seed in range(6)}, streams=2)
    heard = [h.submit("some text for everyone", seed=seed)[1] for seed in range(6)]
    h.run()
    assert [each.frames for each in heard] == [4, 5, 6, 7, 8, 9]
    h.assert_balanced()


def test_the_marks_of_a_stream_are_in_order_and_its_stages_sum_to_the_first_packet() -> None:
    h = harness({0: 6})
    h.submit("some text")
    h.run()
    timing = h.streams[0].timing
    times = [timing.marks[mark] for mark in Mark]
    assert times == sorted(times)
    assert sum(timing.stages_s().values()) == pytest.approx(timing.first_packet_s)
