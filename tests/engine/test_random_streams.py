"""Random sequences of client commands: each stream that is not cancelled gets the same output as alone.

The talker is scripted; prompts, slots, windows and packets are those of the engine. With the fake clock some clients
underrun and others are far ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.engine import output
from legato.engine.flow_control import BACKGROUND, UNLIMITED, FlowControl, FlowMode, paced
from legato.engine.packetizer import PacketPolicy
from legato.types import FinishReason, StreamId
from tests.engine.harness import Harness, Received
from tests.engine.test_core import frame_of, stops_at

TEXT = "abcdefghij"
FLOW_CONTROLS = st.sampled_from([UNLIMITED, BACKGROUND, paced(1), paced(5), paced(30)])
PACKETS = st.sampled_from([(1, 2, 4), (1,), (4,), (3, 1), (30,)])
STOPS = st.lists(st.integers(0, 40), min_size=6, max_size=6)
CLIENT = st.integers(0, 30)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), PACKETS, FLOW_CONTROLS, st.integers(0, len(TEXT))),
        st.tuples(st.just("text"), CLIENT, st.integers(1, 4)),
        st.tuples(st.just("end"), CLIENT),
        st.tuples(st.just("cancel"), CLIENT),
        st.tuples(st.just("take"), CLIENT),
        st.tuples(st.just("flow control"), CLIENT, FLOW_CONTROLS),
        st.tuples(st.just("steps"), st.integers(1, 12)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class ClientState:
    """One client and its commands so far."""

    id: StreamId
    received: Received
    packets: tuple[int, ...]
    given: int
    ended: bool = False
    cancelled: bool = False
    paced: bool = False


class Simulation:
    """A harness and its clients. An action without a matching client is ignored."""

    def __init__(self, stops: list[int], *, adaptive: bool, tick_s: float) -> None:
        self.stops = stops
        script = stops_at(dict(enumerate(stops)))
        self.h = Harness(script, streams=3, adaptive=adaptive, tick_s=tick_s, prefill_positions=20)  # type: ignore[arg-type]
        self.clients: list[ClientState] = []

    def act(self, action: tuple[object, ...]) -> None:
        match action:
            case ("submit", *_) if len(self.clients) == len(self.stops):
                pass
            case ("submit", tuple() as packets, FlowControl() as flow_control, int() as known):
                stream, received = self.h.submit(
                    TEXT[:known], seed=len(self.clients), ended=False, packets=packets, flow_control=flow_control
                )
                self.clients.append(
                    ClientState(stream, received, packets, known, paced=flow_control.mode is FlowMode.PACED)
                )
            case ("steps", int() as steps):
                for _ in range(steps):
                    self.h.step()
            case (str() as what, int() as number, *rest) if self.clients:
                self.send(self.clients[number % len(self.clients)], what, *rest)

    def send(self, client: ClientState, what: str, *rest: object) -> None:
        match what, rest:
            case "text", [int() as count] if not client.ended:
                self.h.append(client.id, TEXT[client.given : client.given + count])
                client.given += count
            case "end", []:
                self.end(client)
            case "cancel", []:
                client.cancelled = True
                self.h.cancel(client.id)
            case "take", []:
                self.h.report_consumed(client.id, client.received.frames)
            case "flow control", [FlowControl() as flow_control]:
                client.paced = client.paced or flow_control.mode is FlowMode.PACED
                self.h.set_flow_control(client.id, flow_control, client.received.frames)

    def end(self, client: ClientState) -> None:
        """Send the rest of the text and end it."""
        if not client.ended:
            self.h.append(client.id, TEXT[client.given :])
            self.h.end(client.id)
            client.ended = True

    def finish(self) -> None:
        """Let all streams run to their end."""
        for client in self.clients:
            self.end(client)
            self.h.set_flow_control(client.id, UNLIMITED, client.received.frames)
        self.h.run()
        self.h.assert_all_slots_free()

    def check(self, seed: int, client: ClientState, *, adaptive: bool) -> None:
        received, stop = client.received, self.stops[seed]
        assert not received.errors
        assert [packet.last for packet in received.packets] == [False] * (len(received.packets) - 1) + [True]
        sizes = [packet.frames for packet in received.packets]
        assert [packet.first_sample for packet in received.packets] == [24 * sum(sizes[:n]) for n in range(len(sizes))]
        frames = sum(sizes)
        if received.reason is FinishReason.CANCELLED:
            assert client.cancelled
            assert frames <= stop
        else:
            assert (received.reason, frames) == (FinishReason.EOS, stop)
        if not (adaptive and client.paced):  # only packets of paced streams may be shortened
            policy = PacketPolicy(client.packets)
            full = sizes[:-2] if received.packets[-1].frames == 0 else sizes[:-1]
            assert full == [policy.size(number) for number in range(len(full))]
        if frames:
            whole = self.h.codec_runner.decode_whole([frame_of(seed, number) for number in range(frames)])
            np.testing.assert_allclose(received.samples, whole, atol=2e-5)


@settings(max_examples=25, deadline=None)
@given(STOPS, ACTIONS, st.booleans(), st.sampled_from([0.0002, 0.001, 0.003]))
def test_random_streams_are_complete_and_release_everything(
    stops: list[int], actions: list[tuple[object, ...]], adaptive: bool, tick_s: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "AMPLE_SLACK_S", 0.004)  # a frame of the tiny codec lasts a millisecond
        simulation = Simulation(stops, adaptive=adaptive, tick_s=tick_s)
        for action in [("submit", (1, 2, 4), UNLIMITED, 3), *actions]:
            simulation.act(action)
        simulation.finish()
        for seed, client in enumerate(simulation.clients):
            simulation.check(seed, client, adaptive=adaptive)
