"""Partitions that are left alone for a while. All that come back at the same time share one timer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from reference_broker.ports.node_ports import Ports
from reference_broker.replication.follower.followed import Followed

FIRST_BACKOFF_MS = 20
"""Doubled with each further error, up to ``replica.fetch.backoff.ms``.

The first pause is short because after a failover the new leader is ready in a moment.
"""


def backoff_ms(errors: int, longest_ms: int) -> int:
    """``errors`` counts the errors in a row before this one."""
    return min(FIRST_BACKOFF_MS << min(errors, 16), longest_ms)


@dataclass(slots=True)
class Delays:
    """``back`` gets each partition whose pause is over. ``done()`` is called after the last of them."""

    _ports: Ports
    _longest_ms: int
    _back: Callable[[Followed], None]
    _done: Callable[[], None]
    _groups: dict[int, list[Followed]] = field(default_factory=dict)
    """Keyed by the time from which the partitions are fetched again."""

    def put(self, one: Followed) -> None:
        """Pauses a partition after an error, longer with each error in a row."""
        one.resumes_us = self._ports.now().mono_us + backoff_ms(one.errors, self._longest_ms) * 1000 + 1
        one.errors += 1
        group = self._groups.get(one.resumes_us)
        if group is None:
            group = self._groups[one.resumes_us] = []
            self._ports.set_timer(one.resumes_us, partial(self._release, one.resumes_us))
        group.append(one)

    def shortened(self, wait_ms: int) -> int:
        """``wait_ms``, or less if a partition comes back before that."""
        if not self._groups:
            return wait_ms
        return min(wait_ms, max(0, (min(self._groups) - self._ports.now().mono_us) // 1000 + 1))

    def _release(self, resumes_us: int) -> None:
        for one in self._groups.pop(resumes_us):
            if one.resumes_us == resumes_us:  # Otherwise it came back earlier, or was put off again.
                one.resumes_us = 0
                self._back(one)
        self._done()
