"""Looks at partitions that have a replica behind, twice in ``replica.lag.time.max.ms`` and when brokers change.

A partition is watched from its first append (or proposal) until all replicas are in sync and at the leader's end again.
A partition at rest is therefore not visited. A round runs in slices, one slice per event.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.ports.node_ports import Ports, Slices, later, run_slices
from reference_broker.replication.leader.replicas import Followers
from reference_broker.replication.partitions import Partition

PARTITIONS_PER_SLICE = 256
"""How many partitions one event looks at; that takes less than 2 ms."""

Look: TypeAlias = Callable[[Partition, Followers, bool], None]
"""(partition, its followers, whether the leader may propose to remove those that lag)."""


@dataclass(slots=True)
class LagCheck:
    """``watched`` holds partitions in the order in which they fell behind."""

    _ports: Ports
    _max_lag_ms: int
    _look: Look
    watched: dict[Partition, None] = field(default_factory=dict)
    _is_running: bool = False
    _again: bool = False
    _shrinks_again: bool = False

    def watch(self, partition: Partition, followers: Followers) -> None:
        followers.is_watched = True
        self.watched[partition] = None

    def unwatch(self, partition: Partition) -> None:
        self.watched.pop(partition, None)

    def begin(self, *, shrinks: bool) -> None:
        """Starts a round. If one is running, another follows it, since the running one may have passed the change."""
        if self._is_running:
            self._again = True
            self._shrinks_again = self._shrinks_again or shrinks
        elif self.watched:
            self._is_running = True
            run_slices(self._ports, self._round(shrinks), self._round_over)

    def start(self) -> None:
        """The first look comes after half of ``replica.lag.time.max.ms``, and so does each further one."""
        later(self._ports, self._max_lag_ms * 500, self._time_passed)

    def _time_passed(self) -> None:
        self.start()
        self.begin(shrinks=True)

    def _round_over(self) -> None:
        self._is_running = False
        if self._again:
            shrinks = self._shrinks_again
            self._again = self._shrinks_again = False
            self.begin(shrinks=shrinks)

    def _round(self, shrinks: bool) -> Slices:
        for number, partition in enumerate(list(self.watched), 1):
            followers = partition.followers
            if followers is not None:
                if followers.is_even(partition.log.log_end_offset):
                    followers.is_watched = False
                    self.unwatch(partition)
                self._look(partition, followers, shrinks)
            if number % PARTITIONS_PER_SLICE == 0:
                yield
