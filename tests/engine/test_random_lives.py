"""Streams that come, pause, change their minds and go, at random: each that survives has what it would have alone.

The talker says what its script says; prompts, slots, windows and packets are the engine's own. The clock is fake, so
that some listeners run dry and others are far ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.engine import emission
from legato.engine.demand import BACKGROUND, UNLIMITED, Demand, Pace, paced
from legato.engine.framing import PacketPolicy
from legato.flow import FinishReason, StreamId
from tests.engine.harness import Harness, Heard
from tests.engine.test_loop import frame_of, stops_at

TEXT = "abcdefghij"
DEMANDS = st.sampled_from([UNLIMITED, BACKGROUND, paced(1), paced(5), paced(30)])
PACKETS = st.sampled_from([(1, 2, 4), (1,), (4,), (3, 1), (30,)])
STOPS = st.lists(st.integers(0, 40), min_size=6, max_size=6)
WHO = st.integers(0, 30)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), PACKETS, DEMANDS, st.integers(0, len(TEXT))),
        st.tuples(st.just("text"), WHO, st.integers(1, 4)),
        st.tuples(st.just("end"), WHO),
        st.tuples(st.just("cancel"), WHO),
        st.tuples(st.just("take"), WHO),
        st.tuples(st.just("demand"), WHO, DEMANDS),
        st.tuples(st.just("turns"), st.integers(1, 12)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Life:
    """One client and what it has done so far."""

    id: StreamId
    heard: Heard
    packets: tuple[int, ...]
    given: int
    ended: bool = False
    cancelled: bool = False
    paced: bool = False


class World:
    """A harness and its clients; an action aimed at nobody does nothing."""

    def __init__(self, stops: list[int], *, adaptive: bool, tick_s: float) -> None:
        self.stops = stops
        script = stops_at(dict(enumerate(stops)))
        self.h = Harness(script, streams=3, adaptive=adaptive, tick_s=tick_s, prefill_positions=20)  # type: ignore[arg-type]
        self.lives: list[Life] = []

    def act(self, action: tuple[object, ...]) -> None:
        match action:
            case ("submit", *_) if len(self.lives) == len(self.stops):
                pass
            case ("submit", tuple() as packets, Demand() as demand, int() as known):
                stream, heard = self.h.submit(
                    TEXT[:known], seed=len(self.lives), ended=False, packets=packets, demand=demand
                )
                self.lives.append(Life(stream, heard, packets, known, paced=demand.pace is Pace.PACED))
            case ("turns", int() as turns):
                for _ in range(turns):
                    self.h.turn()
            case (str() as what, int() as who, *rest) if self.lives:
                self.tell(self.lives[who % len(self.lives)], what, *rest)

    def tell(self, life: Life, what: str, *rest: object) -> None:
        match what, rest:
            case "text", [int() as count] if not life.ended:
                self.h.append(life.id, TEXT[life.given : life.given + count])
                life.given += count
            case "end", []:
                self.end(life)
            case "cancel", []:
                life.cancelled = True
                self.h.cancel(life.id)
            case "take", []:
                self.h.taken(life.id, life.heard.frames)
            case "demand", [Demand() as demand]:
                life.paced = life.paced or demand.pace is Pace.PACED
                self.h.demand(life.id, demand, life.heard.frames)

    def end(self, life: Life) -> None:
        """All of the text has come."""
        if not life.ended:
            self.h.append(life.id, TEXT[life.given :])
            self.h.end(life.id)
            life.ended = True

    def finish(self) -> None:
        """Everybody hears his stream to the end."""
        for life in self.lives:
            self.end(life)
            self.h.demand(life.id, UNLIMITED, life.heard.frames)
        self.h.run()
        self.h.assert_balanced()

    def check(self, seed: int, life: Life, *, adaptive: bool) -> None:
        heard, stop = life.heard, self.stops[seed]
        assert not heard.errors
        assert [packet.last for packet in heard.packets] == [False] * (len(heard.packets) - 1) + [True]
        sizes = [packet.frames for packet in heard.packets]
        assert [packet.first_sample for packet in heard.packets] == [24 * sum(sizes[:n]) for n in range(len(sizes))]
        frames = sum(sizes)
        if heard.reason is FinishReason.CANCELLED:
            assert life.cancelled
            assert frames <= stop
        else:
            assert (heard.reason, frames) == (FinishReason.EOS, stop)
        if not (adaptive and life.paced):  # only a live listener's packets are ever cut short
            policy = PacketPolicy(life.packets)
            full = sizes[:-2] if heard.packets[-1].frames == 0 else sizes[:-1]
            assert full == [policy.size(number) for number in range(len(full))]
        if frames:
            whole = self.h.stage.decode_whole([frame_of(seed, number) for number in range(frames)])
            np.testing.assert_allclose(heard.samples, whole, atol=2e-5)


@settings(max_examples=25, deadline=None)
@given(STOPS, ACTIONS, st.booleans(), st.sampled_from([0.0002, 0.001, 0.003]))
def test_whoever_survives_has_all_of_it_and_nothing_is_lost(
    stops: list[int], actions: list[tuple[object, ...]], adaptive: bool, tick_s: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emission, "EASY_S", 0.004)  # a frame of the tiny codec lasts a millisecond
        world = World(stops, adaptive=adaptive, tick_s=tick_s)
        for action in [("submit", (1, 2, 4), UNLIMITED, 3), *actions]:
            world.act(action)
        world.finish()
        for seed, life in enumerate(world.lives):
            world.check(seed, life, adaptive=adaptive)
