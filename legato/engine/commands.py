"""What a client may say to the engine: submit a stream, and the four commands that flow back.

Plain values, carried by a queue from any thread to the engine's. They own nothing and know no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from legato.engine.demand import Demand
from legato.engine.stream import Stream
from legato.flow import StreamId


@dataclass(frozen=True, slots=True)
class Submit:
    """A new stream. `received_s`: when the request reached us, on the engine's clock."""

    stream: Stream
    received_s: float


@dataclass(frozen=True, slots=True)
class AppendText:
    """More text of a stream, of any length, cut anywhere."""

    stream: StreamId
    text: str


@dataclass(frozen=True, slots=True)
class EndText:
    """No more text will come."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop now: no further frame, no further decode."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class SetDemand:
    """How far ahead the stream may run from now on. `taken`: frames that its listener has taken so far."""

    stream: StreamId
    demand: Demand
    taken: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The listener has taken `frames` frames in all."""

    stream: StreamId
    frames: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The engine closes: speak what text there is, for nobody will say how far the listener is; then end."""

    stream: StreamId


Command = Submit | AppendText | EndText | Cancel | SetDemand | Taken | Drain
