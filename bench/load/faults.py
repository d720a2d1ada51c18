"""Faults in a workload: a node is killed or paused, or its link to clients is cut or delayed, while the load continues.
The report shows the cost.

A workload lists them under ``crucible: faults:``, with the words of scenarios (``scenarios/fault_kinds.py``): kind,
node, ``atS`` (a second of the measurement), and how long the node is gone. Any target can play them whose nodes the
suite starts. A fault counts only with evidence: the kernel says that the process ended by SIGKILL, or is stopped, or a
request through the link got no response, or a late one.

``FaultPlayer`` has no thread of its own, because a node must not outlive the thread that starts it (``children.py``).
The run's loop calls ``do_due`` often.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Annotated, Final, Literal, Protocol

import msgspec
import psutil

from bench.load.measures import Measures, quantile_us
from bench.peers.cluster import PeerCluster
from bench.peers.node import BrokerNode, responds
from bench.ports import API_VERSIONS_0
from reference_broker.blocking.transport import Connection, TransportError

KILLED: Final = "node_killed"
PAUSED: Final = "node_paused"
CUT: Final = "link_cut"
DELAYED: Final = "link_delayed"
LEADER: Final = "leader"
BASELINE_S: Final = 10
RECOVERED_SHARE: Final = 0.95
RECOVERED_P99: Final = 2.0
RECOVERED_FLOOR_US: Final = 50_000
RECOVERED_S: Final = 3
"""A load has recovered in the first of three seconds in a row in which 95 % of the baseline's rate is acknowledged,
with a 99th percentile of at most twice the baseline's (50 ms are never too much)."""
_READY_EVERY_S: Final = 0.1
STOPPED_LIMIT_S: Final = 0.5
PROBE_S: Final = 1.0
"""Limit of a request through a link that is cut, because nothing else happens meanwhile."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    kind: Literal["node_killed", "node_paused", "link_cut", "link_delayed"]
    at_s: Annotated[float, msgspec.Meta(ge=0)]  # from the start of the measurement
    node: int | Literal["leader"] = LEADER  # of the first partition, when the fault is due
    restart_after_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0  # of node_killed
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0  # of all others
    delay_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 100  # of responses, by link_delayed
    jitter_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0

    @property
    def is_of_link(self) -> bool:
        return self.kind in (CUT, DELAYED)

    @property
    def gone_s(self) -> float:
        """Time for which the node does nothing, without the time of its start."""
        return self.restart_after_s if self.kind == KILLED else self.duration_s


class LinkError(Exception):
    """A link could not be made or changed. The message is one sentence."""


class ClientLinks(Protocol):
    """Proxies between clients and nodes. ``addresses`` are those of the nodes for clients, in the order of the nodes.
    Each method raises LinkError."""

    addresses: Sequence[tuple[str, int]]

    def connect(self, ports: Sequence[int]) -> None:
        """Pass connections on to the nodes, which listen at these ports of loopback."""
        ...

    def cut(self, number: int) -> None:
        """Let all bytes to and from a node vanish. Connections stay open."""
        ...

    def delay(self, number: int, delay_ms: int, jitter_ms: int) -> None:
        """Delay responses of a node."""
        ...

    def heal(self, number: int) -> None: ...


class FiredFault(msgspec.Struct, kw_only=True):
    """A fault of a run. Times are seconds since the start of the load; -1: it did not come to that."""

    fault: Fault
    node: int = -1
    at_s: float = -1.0
    restored_s: float = -1.0  # the node responds again, or goes on
    evidence: str = ""  # empty if nothing proves that it fired


class FaultPlayer:
    """Injects the faults of a run and ends them. ``leader`` returns the ID of the node that leads the first partition,
    and ``first_s`` is when the measurement starts. Times are seconds since the start of the load."""

    def __init__(
        self,
        faults: Sequence[Fault],
        cluster: PeerCluster | None,
        first_s: float,
        leader: Callable[[], int],
        links: ClientLinks | None = None,
    ) -> None:
        self.fired = [FiredFault(fault=fault) for fault in faults]
        self._cluster = cluster
        self._leader = leader
        self._links = links
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        for each in self.fired:
            self._at(first_s + each.fault.at_s, partial(self._inject, each))

    @property
    def next_s(self) -> float:
        """Time at which ``do_due`` has something to do next, infinity if never."""
        return self._due[0][0] if self._due else float("inf")

    def do_due(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            heappop(self._due)[2](now_s)

    def finish(self, clock: Callable[[], float]) -> None:
        """End the faults that still last: clients have to settle what they sent. Raise PeerError if a node does not
        start."""
        for each in self.fired:
            if each.at_s < 0 or each.restored_s >= 0:
                continue
            member = self._member(each.node)
            if each.fault.is_of_link:
                self._heal(each, member, clock())
            elif each.fault.kind == PAUSED:
                member.send_signal(signal.SIGCONT)
            else:
                if member.ended():
                    member.launch()
                member.await_ready()
            each.restored_s = clock()
        self._due.clear()

    def _at(self, when_s: float, action: Callable[[float], None]) -> None:
        self._made += 1
        heappush(self._due, (when_s, self._made, action))

    def _member(self, node: int) -> BrokerNode:
        assert self._cluster is not None, "faults without nodes of our own are refused before the run"
        return next((member for member in self._cluster.members if member.node_id == node), self._cluster.members[0])

    def _inject(self, fired: FiredFault, now_s: float) -> None:
        wanted = fired.fault.node
        member = self._member(self._leader() if wanted == LEADER else int(wanted))
        fired.node, fired.at_s = member.node_id, now_s
        if member.process is None or member.ended():
            return  # Another fault has killed it, so there is no evidence of this one.
        pid = member.process.pid
        if fired.fault.is_of_link:
            self._disturb_link(fired, member)
            self._at(now_s + fired.fault.gone_s, partial(self._heal, fired, member))
        elif fired.fault.kind == KILLED:
            member.send_signal(signal.SIGKILL)
            member.reap()
            if member.process.returncode == -signal.SIGKILL:
                fired.evidence = f"process {pid} of node {member.node_id} ended by SIGKILL"
            self._at(now_s + fired.fault.gone_s, lambda _: self._restart(fired, member))
        else:
            member.send_signal(signal.SIGSTOP)
            if _is_stopped(pid):
                fired.evidence = f"process {pid} of node {member.node_id} was in the state stopped"
            self._at(now_s + fired.fault.gone_s, lambda then_s: self._resume(fired, member, then_s))

    def _disturb_link(self, fired: FiredFault, member: BrokerNode) -> None:
        """Cut or delay a node's link. A request through it yields the evidence."""
        (links, number), fault = self._link_of(member), fired.fault
        if fault.kind == CUT:
            links.cut(number)
            limit_s = min(PROBE_S, fault.duration_s / 2)
            if _response_s(links.addresses[number], limit_s) is None:
                fired.evidence = f"a request to node {member.node_id} had no response within {limit_s:g} s"
            return
        links.delay(number, fault.delay_ms, fault.jitter_ms)
        taken_s = _response_s(links.addresses[number], PROBE_S + (fault.delay_ms + fault.jitter_ms) / 1000)
        if taken_s is not None and taken_s * 1000 >= fault.delay_ms - fault.jitter_ms:
            fired.evidence = f"a response of node {member.node_id} took {taken_s * 1000:,.0f} ms"

    def _heal(self, fired: FiredFault, member: BrokerNode, now_s: float) -> None:
        links, number = self._link_of(member)
        links.heal(number)
        fired.restored_s = now_s

    def _link_of(self, member: BrokerNode) -> tuple[ClientLinks, int]:
        """Return the links and the number of a node's own."""
        assert self._links is not None, "without links their faults are refused before the run"
        assert self._cluster is not None, "and so they are without nodes"
        return self._links, list(self._cluster.members).index(member)

    def _restart(self, fired: FiredFault, member: BrokerNode) -> None:
        member.launch()
        self._at(0.0, lambda now_s: self._check_ready(fired, member, now_s))

    def _check_ready(self, fired: FiredFault, member: BrokerNode, now_s: float) -> None:
        if responds(member.port, timeout_s=_READY_EVERY_S):
            fired.restored_s = now_s
        else:
            self._at(now_s + _READY_EVERY_S, lambda then_s: self._check_ready(fired, member, then_s))

    def _resume(self, fired: FiredFault, member: BrokerNode, now_s: float) -> None:
        member.send_signal(signal.SIGCONT)
        fired.restored_s = now_s


def _response_s(address: tuple[str, int], limit_s: float) -> float | None:
    """Return how long a node needs to respond to ApiVersions; None if it does not within the limit."""
    try:
        with Connection.open(*address, int(limit_s * 1e6)) as connection:
            began_s = time.monotonic()
            connection.exchange(API_VERSIONS_0)
            return time.monotonic() - began_s
    except TransportError:
        return None


def _is_stopped(pid: int) -> bool:
    """Return whether the kernel has stopped a process, which may take it a moment."""
    deadline_s = time.monotonic() + STOPPED_LIMIT_S
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


class Span(msgspec.Struct, frozen=True):
    """Rates and latencies of consecutive seconds."""

    first: int  # the first second
    end: int  # the second after the last
    acknowledged_per_s: float
    read_per_s: float
    p99_ms: float  # of the response latency


class FaultFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a fault."""

    fired: FiredFault
    baseline: Span
    during: Span  # from the fault to the time at which the node was back
    recovery: Span  # from there to the end of the first good seconds, or to where they were no longer waited for
    recovered_s: float  # since the fault; -1: not recovered before the next fault or the end of the measurement

    @property
    def sentence(self) -> str:
        fired, during = self.fired, self.during
        if not fired.evidence:
            return f"{fired.fault.kind} at {fired.fault.at_s:g} s: nothing proves that it fired."
        whole = (
            f"recovered {self.recovered_s:.0f} s after it"
            if self.recovered_s >= 0
            else f"not recovered within {self.recovery.end - fired.at_s:.0f} s"
        )
        return (
            f"{fired.fault.kind} of node {fired.node} for {fired.restored_s - fired.at_s:.1f} s: "
            f"{_span(self.baseline)} before, {_span(during)} during, {_span(self.recovery)} until recovered; {whole} "
            f"({fired.evidence})."
        )


def _span(span: Span) -> str:
    return f"{span.acknowledged_per_s:,.0f} records/s and a p99 of {span.p99_ms:,.0f} ms"


def figures(fired: Sequence[FiredFault], measures: Measures, first: int, end: int) -> Iterator[FaultFigures]:
    """Yield the figures of each fault. The measurement goes from the second ``first`` to before ``end``."""
    known = sorted(fired, key=lambda fault: fault.at_s)
    settled = first  # where the fault before is over, with the load that it had held up
    for place, each in enumerate(known):
        if each.at_s < 0:
            nothing = _figures_of(measures, 0, 0)
            yield FaultFigures(fired=each, baseline=nothing, during=nothing, recovery=nothing, recovered_s=-1)
            continue
        limit = int(known[place + 1].at_s) if place + 1 < len(known) else end
        at, back = int(each.at_s), min(max(int(each.at_s), int(each.restored_s)) + 1, end)
        baseline = _figures_of(measures, min(max(settled, at - BASELINE_S), at - 1), at)
        recovered = _recovered(measures, baseline, int(each.restored_s), limit)
        settled = limit if recovered is None else min(limit, max(recovered, back) + RECOVERED_S)
        yield FaultFigures(
            fired=each,
            baseline=baseline,
            during=_figures_of(measures, at, back),
            recovery=_figures_of(measures, back, settled),
            recovered_s=-1.0 if recovered is None else max(0.0, recovered - each.at_s),
        )


def _recovered(measures: Measures, baseline: Span, since: int, limit: int) -> int | None:
    """Return the first of the seconds in a row that are as good as the baseline."""
    good = 0
    for at in range(since, limit):
        second = _figures_of(measures, at, at + 1)
        is_good = (
            second.acknowledged_per_s >= RECOVERED_SHARE * baseline.acknowledged_per_s
            and second.p99_ms * 1000 <= max(RECOVERED_P99 * baseline.p99_ms * 1000, RECOVERED_FLOOR_US)
        )
        good = good + 1 if is_good else 0
        if good == RECOVERED_S:
            return at - RECOVERED_S + 1
    return None


def _figures_of(measures: Measures, first: int, end: int) -> Span:
    seconds = [measures.seconds[at] for at in range(first, end) if at in measures.seconds]
    length = max(1, end - first)
    p99_us = quantile_us(measures.histogram("response", first, end), 0.99)
    return Span(
        first,
        end,
        sum(second.acknowledged for second in seconds) / length,
        sum(second.read for second in seconds) / length,
        p99_us / 1000,
    )
