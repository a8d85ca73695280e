"""Stop conditions and limits of a sequence: when it can start, its frame limit, its finish reason. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.model import ModelConfig
from legato.engine.sequence import Sequence
from legato.engine.stream import StreamRequest
from legato.errors import TextTooLongError
from legato.text.prompt import plan_prompt
from legato.types import FinishReason, NeedsText, PromptPlan


@dataclass(frozen=True, slots=True)
class FrameLimit:
    """Maximum number of frames of a sequence, and the finish reason when it is reached."""

    frames: int
    reason: FinishReason


def build_prompt(
    sequence: Sequence, request: StreamRequest, config: ModelConfig, max_seq_len: int
) -> PromptPlan | None:
    """The prompt of a sequence, None while it lacks text. `TextTooLongError` with the numbers if it cannot fit.

    Each frame takes one position after the prompt. Space is required for `max_frames` if the caller set it, else for
    the known text tokens that are fed one per frame, and for at least one frame.
    """
    plan = plan_prompt(config.talker, sequence.spec, sequence.track)
    if isinstance(plan, NeedsText):
        return None
    unfed = len(plan.feed_before) + len(sequence.track.tokens) - plan.consumed if not request.max_frames else 0
    # A caller's limit counts for the whole stream, so only its first sequence can be checked against it.
    first_of_limited = bool(request.max_frames) and sequence.number == 0
    frames = request.max_frames if first_of_limited else max(unfed, 1)
    if len(plan.rows) + frames > max_seq_len:
        raise TextTooLongError(
            f"the prompt takes {len(plan.rows)} positions and its audio at least {frames}, but a slot has {max_seq_len}"
            ": shorten the text, the reference or max_frames, or start the engine with more positions",
            field="max_frames" if first_of_limited and request.max_frames > 1 else "text",
        )
    return plan


def frame_limit(sequence: Sequence, request: StreamRequest, stream_frames: int, max_seq_len: int) -> FrameLimit:
    """The limit in force: the caller's `max_frames` if set, else the budget of the text, never more than the slot.

    `stream_frames`: frames of the whole stream so far. The budget does not apply to a sequence that ends with its
    track, nor while text can still arrive: such a sequence waits for text and cannot run away.
    """
    slot = FrameLimit(max_seq_len - len(sequence.slot.plan.rows), FinishReason.BUDGET)
    if request.max_frames:
        requested = FrameLimit(sequence.frames + request.max_frames - stream_frames, FinishReason.MAX_FRAMES)
        return min(requested, slot, key=lambda limit: limit.frames)
    if sequence.ends_with_track or not sequence.track.ended:
        return slot
    return FrameLimit(min(slot.frames, sequence.budget_frames), FinishReason.BUDGET)


def end_after_frame(sequence: Sequence, watchdog: FinishReason | None, limit: FrameLimit) -> FinishReason | None:
    """The reason why the sequence ends with its newest frame, None if it goes on. `watchdog`: the watchdog's result."""
    if sequence.ends_with_track and sequence.track.ended and sequence.frames >= len(sequence.track.tokens):
        return FinishReason.TRACK_END
    if sequence.frames >= limit.frames:
        return limit.reason
    return watchdog
