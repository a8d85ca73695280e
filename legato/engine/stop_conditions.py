"""Limits and stop conditions of a sequence: its prompt, its frame limit, its finish reason. Pure functions."""

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
    """Build the prompt of a sequence; None while there is not enough text.

    Each frame takes one position after the prompt. Space is reserved for `max_frames` if the request sets it; otherwise
    for the known text tokens that follow the prompt, one frame each, and at least one frame. Raises `TextTooLongError`,
    with the required and the available positions, if this exceeds `max_seq_len`.
    """
    plan = plan_prompt(config.talker, sequence.spec, sequence.tokenizer)
    if isinstance(plan, NeedsText):
        return None
    # `max_frames` limits the whole stream, so only the first sequence can be checked against it.
    checks_max_frames = bool(request.max_frames) and sequence.number == 0
    if checks_max_frames:
        frames = request.max_frames
    elif request.max_frames:
        frames = 1
    else:
        remaining_tokens = len(plan.leading_tokens) + len(sequence.tokenizer.tokens) - plan.next_text_index
        frames = max(remaining_tokens, 1)
    if len(plan.rows) + frames > max_seq_len:
        raise TextTooLongError(
            f"the prompt takes {len(plan.rows)} positions and its audio at least {frames}, but max_seq_len is "
            f"{max_seq_len}: shorten the text, the reference or max_frames, or increase max_seq_len",
            field="max_frames" if checks_max_frames and request.max_frames > 1 else "text",
        )
    return plan


def frame_limit(sequence: Sequence, request: StreamRequest, stream_frames: int, max_seq_len: int) -> FrameLimit:
    """The frame limit of a sequence: `max_frames` if the request sets it, else the frame budget of its text.

    It never exceeds the positions left in the KV slot. `stream_frames`: frames of the whole stream so far. The budget
    is not applied while text may still arrive, because the sequence then waits for text, or if it ends with its text.
    """
    slot_limit = FrameLimit(max_seq_len - len(sequence.slot.plan.rows), FinishReason.BUDGET)
    if request.max_frames:
        requested = FrameLimit(sequence.frames + request.max_frames - stream_frames, FinishReason.MAX_FRAMES)
        return min(requested, slot_limit, key=lambda limit: limit.frames)
    if sequence.ends_with_text or not sequence.tokenizer.ended:
        return slot_limit
    return FrameLimit(min(slot_limit.frames, sequence.budget_frames), FinishReason.BUDGET)


def end_after_frame(sequence: Sequence, watchdog: FinishReason | None, limit: FrameLimit) -> FinishReason | None:
    """Why the sequence ends after its last frame; None if it continues. `watchdog`: result of the watchdog."""
    if sequence.ends_with_text and sequence.tokenizer.ended and sequence.frames >= len(sequence.tokenizer.tokens):
        return FinishReason.TRACK_END
    if sequence.frames >= limit.frames:
        return limit.reason
    return watchdog
