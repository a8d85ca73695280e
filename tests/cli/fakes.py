"""Fake `Legato` for the tests of the command line: returns a synthetic signal and records the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType

from legato.engine.stats import Mark, StreamTiming
from legato.types import FinishReason, Packet
from tests.audio.packets import RATE_HZ, speechlike, split_packets


@dataclass
class FakeStream:
    """Yields the given packets; calls `before(n)` before packet n."""

    packets: list[Packet]
    before: Callable[[int], None]
    notes: tuple[str, ...] = ()
    budget_frames: int = 77
    cancelled: bool = False
    timing: StreamTiming = field(
        default_factory=lambda: StreamTiming(
            marks={Mark.RECEIVED: 1.0, Mark.ENOUGH_TEXT: 1.25, Mark.ADMITTED: 1.25, Mark.PREFILLED: 1.5}
        )
    )

    def __iter__(self) -> Iterator[Packet]:
        for index, packet in enumerate(self.packets):
            self.before(index)
            yield packet

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeLegato:
    """Replaces `legato.Legato`. `requests` holds the keyword arguments of each call of `stream`."""

    seconds: float = 0.8
    reason: FinishReason = FinishReason.EOS
    notes: tuple[str, ...] = ()
    before: Callable[[int], None] = field(default=lambda _index: None)
    sample_rate_hz: int = RATE_HZ
    texts: list[list[str]] = field(default_factory=list)
    requests: list[dict[str, object]] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    closed: bool = False

    def stream(self, text: str | Iterable[str], **request: object) -> FakeStream:
        self.texts.append([text] if isinstance(text, str) else list(text))
        self.requests.append(request)
        packets = split_packets(speechlike(self.seconds))
        packets[-1] = replace(packets[-1], finish_reason=self.reason)
        self.streams.append(FakeStream(packets, self.before, self.notes))
        return self.streams[-1]

    def __enter__(self) -> FakeLegato:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True
