"""When a sequence may begin and when it ends: prompt, limits, reasons. Pure decisions over host values."""

from __future__ import annotations

from dataclasses import dataclass

from legato.config.model import ModelConfig
from legato.engine.sequence import Sequence
from legato.engine.stream import StreamRequest
from legato.errors import TextTooLongError
from legato.flow import FinishReason, NeedsText, PromptPlan
from legato.text.prompt import plan_prompt


@dataclass(frozen=True, slots=True)
class FrameLimit:
    """The sequence ends when it has `frames` frames, for `reason`."""

    frames: int
    reason: FinishReason


def prompt_of(sequence: Sequence, request: StreamRequest, config: ModelConfig, positions: int) -> list[PromptPlan]:
    """The prompt, or nothing while text is lacking. `TextTooLongError` with the numbers if it cannot fit its slot.

    Beside its prompt a sequence needs a position for each frame: as many as the caller asks for, or at least one for
    each text token that is known and fed with a frame.
    """
    plan = plan_prompt(config.talker, sequence.spec, sequence.track)
    if isinstance(plan, NeedsText):
        return []
    first_of_limited = bool(request.max_frames) and sequence.number == 0
    unfed = len(plan.feed_before) + len(sequence.track.tokens) - plan.consumed if not request.max_frames else 0
    frames = request.max_frames if first_of_limited else max(unfed, 1)
    if len(plan.rows) + frames > positions:
        raise TextTooLongError(
            f"the prompt takes {len(plan.rows)} positions and its speech at least {frames}, but a slot has {positions}"
            ": shorten the text, the reference or max_frames, or start the engine with more positions",
            field="max_frames" if first_of_limited and request.max_frames > 1 else "text",
        )
    return [plan]


def frame_limit(sequence: Sequence, request: StreamRequest, stream_frames: int, positions: int) -> FrameLimit:
    """The limit in force: the caller's if there is one, else the text-scaled budget; never beyond the slot.

    `stream_frames`: frames of the whole stream so far. A sequence that ends with its track needs no budget; nor does
    one whose text may still come, since it waits for text and cannot run away.
    """
    slot = FrameLimit(positions - len(sequence.seat.plan.rows), FinishReason.BUDGET)
    if request.max_frames:
        asked = FrameLimit(sequence.frames + request.max_frames - stream_frames, FinishReason.MAX_FRAMES)
        return min(asked, slot, key=lambda limit: limit.frames)
    if sequence.ends_with_track or not sequence.track.ended:
        return slot
    return FrameLimit(min(slot.frames, sequence.budget_frames), FinishReason.BUDGET)


def end_after_frame(sequence: Sequence, watchdog: list[FinishReason], limit: FrameLimit) -> list[FinishReason]:
    """Why the sequence ends with the frame it just got: one reason, or none."""
    if sequence.ends_with_track and sequence.track.ended and sequence.frames >= len(sequence.track.tokens):
        return [FinishReason.TRACK_END]
    if sequence.frames >= limit.frames:
        return [limit.reason]
    return watchdog
