"""Measures where a search's time goes: by part of the simulator, and by kind of event.

It replaces the methods of PARTS by ones that read the clock. Times are therefore somewhat larger than without it, but
their shares are valid.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

from chaos.checks.check import Check, FetchCheck, QuorumCheck, ReplicaCheck
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.sessions.fetch_model import FetchModel
from chaos.checks.suite import CheckSuite, check_kinds
from chaos.hooks.metadata_digest import Digest
from chaos.interceptor.interceptor import Interceptor
from chaos.sim import network
from chaos.sim.fleet import SimClient
from chaos.sim.machine import Machine
from chaos.sim.observer import Observer
from reference_broker.core.events import PeerReply, Request
from reference_broker.core.node import Node
from reference_broker.wire.apis import api_name

PARTS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("nodes", Node, ("start", "handle", "shutdown")),
    ("clients", SimClient, ("step",)),
    ("rules of faults", Interceptor, ("before", "after")),
    ("observer", Observer, ("__call__",)),
    ("handing out to checks", CheckSuite, ("acted", "inspect", "note", "trace")),
    ("view of the quorum", QuorumView, ("observe",)),
    ("view of replicas", ReplicaView, ("observe", "image")),
    ("model of fetches", FetchModel, ("acted",)),
    ("digest of the metadata", Digest, ("follow", "thorough")),
    ("codec", network, ("same_after_codec_request", "same_after_codec_reply")),
    ("effects and connections", Machine, ("_carry_out",)),
)
"""The measured parts: a name, and the methods of a class or functions of a module."""
MOST = 25
"""The most lines that are shown of each table."""


@dataclass(slots=True)
class Profile:
    """Time and number of calls of the parts of a play."""

    parts: Counter[str] = field(default_factory=Counter)
    """nanoseconds of each part, without the parts that it calls"""
    kinds: Counter[str] = field(default_factory=Counter)
    """nanoseconds of each kind of event, with all that it led to"""
    counts: Counter[str] = field(default_factory=Counter)
    """number of calls or events of each"""
    whole_ns: int = 0
    _inner: list[int] = field(default_factory=lambda: [0])
    """by part under way: the time of the parts that it called"""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Inside the block everything that this process plays is measured."""
        checks = [(f"check {kind.guarantee}", kind, tuple(_overridden(kind))) for kind in check_kinds()]
        with ExitStack() as patched:
            for name, owner, methods in (*PARTS, *checks):
                for method in methods:
                    patched.enter_context(patch.object(owner, method, self._timed(name, getattr(owner, method))))
            patched.enter_context(patch.object(Machine, "_handle", self._measured_by_kind(Machine._handle)))
            started = perf_counter_ns()
            yield
            self.whole_ns += perf_counter_ns() - started

    def _timed(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            self._inner.append(0)
            started = perf_counter_ns()
            try:
                return own(*args, **named)
            finally:
                taken = perf_counter_ns() - started
                self.parts[name] += taken - self._inner.pop()
                self._inner[-1] += taken
                self.counts[name] += 1

        return timed

    def _measured_by_kind(self, handle: Callable[..., None]) -> Callable[..., None]:
        def measured_by_kind(machine: Machine, node: Node, event: Any) -> None:
            started = perf_counter_ns()
            try:
                handle(machine, node, event)
            finally:
                kind = kind_of(event)
                self.kinds[kind] += perf_counter_ns() - started
                self.counts[kind] += 1

        return measured_by_kind

    def table(self) -> list[str]:
        """Return lines for the terminal: the parts, the rest, and the kinds of events."""
        left = self.whole_ns - sum(self.parts.values())
        return [
            "where the time goes (each without what it calls)",
            *self._lines(self.parts.most_common(MOST)),
            f"{100 * left / self.whole_ns:6.1f} %                              everything else",
            "kinds of events (each with all that it led to)",
            *self._lines(self.kinds.most_common(MOST)),
        ]

    def _lines(self, rows: Sequence[tuple[str, int]]) -> Iterator[str]:
        for name, taken_ns in rows:
            count = self.counts[name]
            yield f"{100 * taken_ns / self.whole_ns:6.1f} %{count:10,} x{taken_ns / count / 1000:10.1f} us  {name}"


def kind_of(event: Any) -> str:
    """Return the kind of the event. Requests and responses differ by their API."""
    if isinstance(event, Request):
        return f"request of a {event.tag.role}: {api_name(event.api_key)}"
    if isinstance(event, PeerReply):
        return f"response of a node: {type(event.body).__name__}"
    return type(event).__name__


def _overridden(kind: type[Check]) -> Iterator[str]:
    """Yield the names of the methods by which a check of this kind is notified."""
    for base in (Check, QuorumCheck, ReplicaCheck, FetchCheck):
        for name in vars(base) if issubclass(kind, base) else ():
            own = getattr(kind, name)
            if name[0] != "_" and callable(own) and own is not getattr(base, name):
                yield name
