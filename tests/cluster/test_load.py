"""Routing and scaling decisions: the emptiest replica, the owner of a request, replicas without a report."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.cluster.load import CHOICE_S, REPORT_AGE_S, InFlight, ReplicaLoad, owner_of, rank_replicas, replicas_needed

loads = st.dictionaries(
    st.text("abcdef0123456789", min_size=1, max_size=8),
    st.none() | st.builds(ReplicaLoad, st.just(""), st.integers(0, 20), st.integers(1, 8), st.integers(0, 20)),
    max_size=6,
).map(
    lambda found: {
        name: None if load is None else ReplicaLoad(name, load.in_flight, load.slots, load.others)
        for name, load in found.items()
    }
)


@given(loads, st.integers())
def test_every_replica_is_ranked_once_and_emptier_ones_come_first(
    found: dict[str, ReplicaLoad | None], seed: int
) -> None:
    ranks = rank_replicas(found, random.Random(seed))
    ranked = [name for rank in ranks for name in rank]
    assert len(ranked) == len(set(ranked))
    known = {name: load for name, load in found.items() if load is not None}
    if known:
        assert set(ranked) == set(found)
        uses = [known[name].use for name in ranked if name in known]
        assert uses == sorted(uses)
    else:
        assert len(ranked) == min(2, len(found))


def test_replica_without_a_report_is_used_before_requests_have_to_wait() -> None:
    busy, free = ReplicaLoad("busy", 2, 2), ReplicaLoad("free", 0, 2)
    assert rank_replicas({"busy": busy, "new": None}, random.Random(0)) == [["new"], ["busy"]]
    assert rank_replicas({"free": free, "new": None, "busy": busy}, random.Random(0)) == [["free"], ["new"], ["busy"]]


def test_streams_of_others_count() -> None:
    found = {"a": ReplicaLoad("a", 0, 4, others=2), "b": ReplicaLoad("b", 1, 4)}
    assert rank_replicas(found, random.Random(0))[0] == ["b"]
    assert ReplicaLoad("a", 2, 4, others=3).free == -1


def test_replicas_with_more_slots_take_more() -> None:
    """40 requests, of which each router sees only its own, in proportion to the slots."""
    sent = Counter[str]()
    for _ in range(40):
        found = {name: ReplicaLoad(name, sent[name], slots) for name, slots in (("small", 1), ("large", 3))}
        sent[rank_replicas(found, random.Random(1))[0][0]] += 1
    assert sent == {"small": 10, "large": 30}


def test_questions_about_a_request_go_to_its_replica() -> None:
    found: dict[str, ReplicaLoad | None] = {"abc": ReplicaLoad("abc", 9, 1), "x1": ReplicaLoad("x1", 0, 1)}
    assert rank_replicas(found, random.Random(0), owner="abc") == [["abc"]]
    assert rank_replicas(found, random.Random(0), owner="gone")[0] == ["x1"]
    assert rank_replicas({}, random.Random(0), owner="gone") == []


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/v1/requests/req_abc1-0011", "abc1"),
        ("/v1/requests/req_abc1-0011/playout", "abc1"),
        ("/v1/requests/req_0011", None),
        ("/v1/requests/req_ABC-0011", None),
        ("/v1/audio/speech", None),
        ("/x/v1/requests/req_abc-1", None),
    ],
)
def test_owner_is_in_the_request_id(path: str, owner: str | None) -> None:
    assert owner_of(path) == owner


@pytest.mark.parametrize(
    ("streams", "slots", "needed"),
    [((), 4, 1), ((0.0, 0.0), 4, 1), ((2.8,), 4, 1), ((3.0,), 4, 2), ((4.0, 4.0), 4, 3), ((100.0,), 1, 143)],
)
def test_replicas_needed(streams: tuple[float, ...], slots: int, needed: int) -> None:
    assert replicas_needed(streams, slots, target_use=0.7) == needed


def test_in_flight_counts_from_the_choice_to_the_end() -> None:
    now_s = 0.0
    flight = InFlight(lambda: now_s)

    def count(replica: str) -> int:
        return flight.load(replica, 0, 1).in_flight

    flight.choose("r1", "a")
    flight.choose("r1", "b")  # chosen again, because "a" was full
    assert (count("a"), count("b")) == (0, 1)
    flight.sent("r1", "a")  # and sent there in the end
    assert (count("a"), count("b")) == (1, 0)
    flight.choose("r2", "b")
    now_s = CHOICE_S + 1
    flight.choose("r3", "a")  # r2 was never sent: its client has left
    assert (count("a"), count("b")) == (2, 0)
    flight.done("a")
    assert count("a") == 1


def test_reports_add_only_what_others_have_sent() -> None:
    now_s = 0.0
    flight = InFlight(lambda: now_s)
    for number in range(3):
        flight.sent(f"r{number}", "a")
    assert flight.load("a", 5, 8) == ReplicaLoad("a", 3, 8, others=2)
    for _ in range(3):
        flight.done("a")
    # A report from before the end of these requests: the replica is idle, and does not look busy.
    now_s = 0.5
    assert flight.load("a", 3, 8) == ReplicaLoad("a", 0, 8, others=0)
    now_s = REPORT_AGE_S + 0.1
    assert flight.load("a", 3, 8) == ReplicaLoad("a", 0, 8, others=3)
