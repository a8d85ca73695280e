"""One run of the talker over one prompt: its states as a table, and the host facts that the loop keeps of it.

A `Sequence` lives from the moment its segment of the text is known until its last frame is decoded. It owns its text
track, its prompt once the text suffices, and its count of frames. It holds a lease of talker positions while it is
seated; the tensors behind the lease belong to the pool. It knows no tensor, no codec and no client.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from legato.engine.leases import KVLease
from legato.errors import StateError
from legato.flow import (
    FinishReason,
    Frame,
    PromptPlan,
    PromptSpec,
    Sampling,
    SequenceId,
    StreamId,
    TextToken,
    TextTrack,
)
from legato.text.budget import BASE_FRAMES, character_frames


class SequenceState(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    """Not enough text, or no free slot."""
    PREFILLING = "prefilling"
    """Seated; its prompt is being computed."""
    RUNNING = "running"
    WAITING_FOR_TEXT = "waiting for text"
    """Keeps its positions, costs no compute."""
    DRAINING = "draining"
    """The talker is done and its slot is free; frames wait for the codec."""
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SequenceEvent(Enum):
    """What can happen to it."""

    ADMIT = "admit"
    PREFILLED = "prefilled"
    TEXT_MISSING = "text missing"
    TEXT_ARRIVED = "text arrived"
    END = "end"
    DRAINED = "drained"
    CANCEL = "cancel"
    FAIL = "fail"


_S, _E = SequenceState, SequenceEvent

TRANSITIONS: dict[tuple[SequenceState, SequenceEvent], SequenceState] = {
    (_S.WAITING, _E.ADMIT): _S.PREFILLING,
    (_S.PREFILLING, _E.PREFILLED): _S.RUNNING,
    (_S.RUNNING, _E.TEXT_MISSING): _S.WAITING_FOR_TEXT,
    (_S.WAITING_FOR_TEXT, _E.TEXT_ARRIVED): _S.RUNNING,
    (_S.RUNNING, _E.END): _S.DRAINING,
    (_S.DRAINING, _E.DRAINED): _S.FINISHED,
    **{
        (state, event): target
        for state in (_S.WAITING, _S.PREFILLING, _S.RUNNING, _S.WAITING_FOR_TEXT, _S.DRAINING)
        for event, target in ((_E.CANCEL, _S.CANCELLED), (_E.FAIL, _S.FAILED))
    },
}
"""What is not in this table is an error."""

SEATED = frozenset({_S.PREFILLING, _S.RUNNING, _S.WAITING_FOR_TEXT})
"""The states in which a sequence holds talker positions."""
OVER = frozenset({_S.FINISHED, _S.CANCELLED, _S.FAILED})
"""The states that nothing leaves."""


def next_state(state: SequenceState, event: SequenceEvent) -> SequenceState:
    """The table looked up; an event that the state does not allow is a `StateError` naming both."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise StateError(f"a sequence that is {state.value} cannot take the event {event.value!r}") from None


@dataclass(slots=True)
class Seat:
    """What a seated sequence holds: its lease, its prompt, how many positions are computed, the frame not yet fed back.

    `unfed` holds no frame or one: the newest frame, until the talker has stepped over it.
    """

    lease: KVLease
    plan: PromptPlan
    positions: int = 0
    unfed: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class Sequence:
    """One segment of a stream's text on its way through the talker. `number` counts from 0 within its stream.

    `budget_frames`: the most frames that its text may take. `prompts` holds its prompt, nothing before.
    """

    id: SequenceId
    stream: StreamId
    number: int
    track: TextTrack
    spec: PromptSpec
    sampling: Sampling
    seed: int
    ends_with_track: bool
    state: SequenceState = SequenceState.WAITING
    budget_frames: int = BASE_FRAMES
    characters: int = 0
    frames: int = 0
    undecoded: deque[Frame] = field(default_factory=deque)
    prompts: list[PromptPlan] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)

    def hear(self, text: str) -> None:
        """The next piece of its text goes to the track, and widens the frame budget."""
        self.characters += len(text)
        self.budget_frames += sum(map(character_frames, text))
        self.track.append(text)

    def take(self, event: SequenceEvent) -> None:
        """Move to the next state."""
        self.state = next_state(self.state, event)

    @property
    def seat(self) -> Seat:
        """The seat of a seated sequence."""
        if not self.seats:
            raise StateError(f"sequence {self.id} is {self.state.value} and holds no slot")
        return self.seats[0]

    @property
    def has_ended(self) -> bool:
        """True once the talker will add no frame."""
        return self.state is SequenceState.DRAINING or self.state in OVER


def text_to_feed(plan: PromptPlan, track: TextTrack, step: int) -> list[TextToken]:
    """The text token added to the input after frame `step`: one, or none while it has not come.

    Never padding before the end of the text: that is out of the official models' distribution.
    """
    if step < len(plan.feed_before):
        return [plan.feed_before[step]]
    index = plan.consumed + step - len(plan.feed_before)
    if index < len(track.tokens):
        return [track.tokens[index]]
    if not track.ended:
        return []
    beyond = index - max(len(track.tokens), plan.consumed)
    return [plan.feed_after[beyond] if beyond < len(plan.feed_after) else plan.pad]
