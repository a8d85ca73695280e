"""Loads of replicas, and decisions that depend on them: which replica takes a request, how many replicas are needed.

Without Ray. A router counts the requests that it has sent itself, in an `InFlight`. The reports of the replicas, which
are up to `REPORT_AGE_S` old, show the rest: streams on sockets, and those of other proxies.
"""

from __future__ import annotations

import math
import random
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STATS_PERIOD_S = 0.25
REPORT_AGE_S = 1.0
"""Age of the oldest report that is normal: the period, and the way through Serve's controller to the router."""
CHOICE_S = 5.0
"""Longest normal time between the choice of a replica and the sending of the request."""
STREAMS_METRIC, SLOTS_METRIC = "legato_streams", "legato_slots"
"""Names of the values that replicas report for autoscaling."""
METRICS_PERIOD_S, METRICS_WINDOW_S = 1.0, 5.0
"""Period and averaging window of these values. Serve's defaults, 10 and 30 s, react to a burst about 20 s later."""
UPSCALE_DELAY_S, DOWNSCALE_DELAY_S = 2.0, 120.0
TARGET_USE = 0.7
"""Autoscaling keeps this share of the slots in use."""
REQUEST_PATH = re.compile(r"/v1/requests/req_([0-9a-z]+)-")
"""Path of a later question about a request; its id names the replica."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of one replica.

    `in_flight`: requests for speech that this router has sent there and that have not ended. `others`: other streams
    that speak, wait or are parked. `slots`: streams that it generates at the same time.
    """

    replica: str
    in_flight: int
    slots: int
    others: int = 0

    @property
    def total(self) -> int:
        return self.in_flight + self.others

    @property
    def free(self) -> int:
        """Slots that another request can use at once; negative if requests wait."""
        return self.slots - self.total

    @property
    def use(self) -> float:
        """Streams per slot."""
        return self.total / self.slots


class InFlight:
    """The requests of one router by replica, from the choice of a replica to the end of the response.

    `done` may be called from any thread, the other methods from the event loop of the router.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: Counter[str] = Counter()
        self._history: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        """Time and number before each change of the last `REPORT_AGE_S`, by replica."""
        self._chosen: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def choose(self, request_id: str, replica: str) -> None:
        """A request will probably be sent to `replica`. Forgotten after `CHOICE_S`, in case that it is never sent."""
        self._chosen[request_id] = (replica, self._clock())
        self._chosen.move_to_end(request_id)
        while self._clock() - next(iter(self._chosen.values()))[1] > CHOICE_S:
            self._chosen.popitem(last=False)

    def sent(self, request_id: str, replica: str) -> None:
        """The request was sent to `replica`."""
        self._chosen.pop(request_id, None)
        self._change(replica, 1)

    def done(self, replica: str) -> None:
        """A response of `replica` has ended, in any way."""
        self._change(replica, -1)

    def load(self, replica: str, streams: int, slots: int) -> ReplicaLoad:
        """The load of `replica`, which has reported `streams`.

        The report includes what this router had sent at that time. That number is not known exactly, so the largest
        one since the oldest normal report is subtracted: an old report cannot make an idle replica look busy.
        """
        chosen = sum(name == replica for name, _ in self._chosen.values())
        with self._lock:
            now = self._sent[replica]
            self._forget_old(replica)
            own = max([now, *(count for _, count in self._history[replica])])
        return ReplicaLoad(replica, in_flight=now + chosen, slots=slots, others=max(0, streams - own))

    def _change(self, replica: str, by: int) -> None:
        with self._lock:
            self._history[replica].append((self._clock(), self._sent[replica]))
            self._sent[replica] += by
            self._forget_old(replica)

    def _forget_old(self, replica: str) -> None:
        history = self._history[replica]
        while history and self._clock() - history[0][0] > REPORT_AGE_S:
            history.popleft()


def rank_replicas(
    loads: Mapping[str, ReplicaLoad | None], rng: random.Random, *, owner: str | None = None
) -> list[list[str]]:
    """The replicas in order of preference; those of one inner list are equally good.

    `loads`: load by replica, None if unknown. `owner`: the replica that has the request that a client asks about; it
    is the only candidate as long as it exists. Without any report, two random replicas are candidates, and Serve
    compares their queues.
    """
    if owner is not None and owner in loads:
        return [[owner]]
    known = [load for load in loads.values() if load is not None]
    unknown = [name for name, load in loads.items() if load is None]
    if not known:
        return [rng.sample(unknown, min(2, len(unknown)))] if unknown else []
    rng.shuffle(known)
    known.sort(key=lambda load: (load.use, -load.slots))
    ranks = [[load.replica] for load in known]
    # A replica without a report has just started, or is stuck. It is preferred only to replicas without a free slot.
    if unknown:
        position = next((index for index, load in enumerate(known) if load.free <= 0), len(ranks))
        ranks.insert(position, unknown)
    return ranks


def replicas_needed(streams: Sequence[float], slots: int, *, target_use: float) -> int:
    """Replicas for the current `streams` of each replica, with `target_use` of their `slots` in use."""
    return max(1, math.ceil(sum(streams) / (slots * target_use)))


def owner_of(path: str) -> str | None:
    """The replica that an URL path asks for, from the request id in it."""
    found = REQUEST_PATH.match(path)
    return found[1] if found else None
