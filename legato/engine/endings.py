"""When a sequence may begin and when it ends: prompt, limits, reasons. Pure decisions over host values."""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.model import ModelConfig
from legato.engine.sequence import Sequence
from legato.engine.stream import StreamRequest
from legato.errors import TextTooLongError
from legato.flow import FinishReason, NeedsText, PromptPlan
from legato.text.budget import frame_budget
from legato.text.prompt import plan_prompt


@dataclass(frozen=True, slots=True)
class FrameLimit:
    """The sequence ends when it has `frames` frames, for `reason`."""

    frames: int
    reason: FinishReason


def prompt_of(sequence: Sequence, request: StreamRequest, config: ModelConfig, positions: int) -> list[PromptPlan]:
    """The prompt, or nothing while text is lacking. `TextTooLongError` with the numbers if it cannot fit its slot."""
    plan = plan_prompt(config.talker, sequence.spec, sequence.track)
    if isinstance(plan, NeedsText):
        return []
    frames = max(request.max_frames, 1)
    if len(plan.rows) + frames > positions:
        raise TextTooLongError(
            f"the prompt takes {len(plan.rows)} positions and its speech at least {frames}, but a slot has {positions}"
            ": shorten the text, the reference or max_frames, or start the engine with more positions",
            field="max_frames" if request.max_frames > 1 else "text",
        )
    return [plan]


def frame_limit(sequence: Sequence, request: StreamRequest, stream_frames: int, positions: int) -> FrameLimit:
    """The limit in force: the caller's if there is one, else the text-scaled budget; never beyond the slot.

    `stream_frames`: frames of the whole stream so far. A sequence that ends with its track needs no budget; nor does
    one whose text may still come, since it waits for text and cannot run away.
    """
    room = positions - len(sequence.seat.plan.rows)
    if request.max_frames:
        return FrameLimit(sequence.frames + request.max_frames - stream_frames, FinishReason.MAX_FRAMES)
    if sequence.ends_with_track or not sequence.track.ended:
        return FrameLimit(room, FinishReason.BUDGET)
    return FrameLimit(min(room, frame_budget("".join(sequence.text))), FinishReason.BUDGET)


def end_after_frame(sequence: Sequence, watchdog: list[FinishReason], limit: FrameLimit) -> list[FinishReason]:
    """Why the sequence ends with the frame it just got: one reason, or none."""
    if sequence.ends_with_track and sequence.track.ended and sequence.frames >= len(sequence.track.tokens):
        return [FinishReason.TRACK_END]
    if sequence.frames >= limit.frames:
        return [limit.reason]
    return watchdog
