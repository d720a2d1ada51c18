"""Compare the two revisions of fetch sessions in the simulator: the same load, faults and seeds for each variant.

``python -m campaigns.experiments.revisions --seeds 5`` prints the tables of docs/experiments.md, and with ``--picture
docs/comparison.png`` it draws them. It takes some minutes. Each cell is the median over the seeds, with the least and
the greatest value behind it if they differ.

Compared are the bytes on the wire, partitions, full fetches and records sent twice (``FetchMeter``), and the memory
that a session takes for one cached partition (tracemalloc). Each request that reached a node counts, a duplicated one
twice, and each response that it sent, a lost one too. ``layout_bytes`` are those of the same messages in the layout of
Fetch 12, which names topics in both revisions, so that a difference of layouts alone does not count.
"""

import argparse
import gc
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import click
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from chaos.checks.check import Check, Kind, fields_of
from chaos.checks.log.batches import batches_of
from chaos.search.children import in_children
from chaos.sim.one_seed import play_seed
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Effect, Event, Opened, Reply, Request, SetTimer, Sync, Synced, TimerFired
from reference_broker.core.node import Node
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.wire.apis import FETCH_FIRST_REVISION, ApiKey
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
)
from reference_broker.wire.messages import encode_request, encode_response
from reference_broker.wire.tags import Tag
from reports.rows import TraceRow
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario
from scenarios.revisions import in_revision

if TYPE_CHECKING:
    from chaos.checks.check import CheckContext
    from reference_broker.core.node import Node


ONE_LAYOUT: Final = 12
FETCHERS: Final = "fetcher-"
"""The prefix of fetchers' client IDs."""
_INT32: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Counted:
    """Sums over a run. Bytes exclude those of records."""

    fetches: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    layout_bytes: int = 0
    named: int = 0
    """Partitions in requests."""
    returned: int = 0
    """Partitions in responses."""
    full_again: int = 0
    """Full requests beyond each fetcher's first one."""
    twice: int = 0
    """Records that a fetcher had been sent before."""
    sessions: int = 0
    evicted: int = 0
    """Sessions that made room for others."""
    cached: int = 0
    """The greatest number of partitions that all sessions cached at once."""


class FetchMeter(Check):
    """Judges nothing. ``counted`` is the result."""

    rows: ClassVar[tuple[str, ...]] = ("session_created", "session_evicted")
    acts_on: ClassVar[tuple[Kind, ...]] = (ApiKey.FETCH.value,)

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.counted = Counted()
        self._began: set[str] = set()
        self._sent_up_to: dict[tuple[str, str, int], int] = {}

    def trace(self, row: TraceRow) -> None:
        if row.what == "session_evicted":
            self.counted.evicted += 1
        else:
            self.counted.sessions += str(fields_of(row)["client_id"]).startswith(FETCHERS)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        names = node.broker.partitions.topic_names
        if type(event) is Request and _counts(event.tag):
            self._note_request(event, names)
        for effect in effects:
            if type(effect) is Reply and effect.body is not None and _counts(effect.tag):
                self._note_response(effect, names)
        self.counted.cached = max(self.counted.cached, node.broker.fetch_sessions.partitions_cached)

    def _note_request(self, event: Request, names: dict[bytes, str]) -> None:
        request = event.body
        assert isinstance(request, FetchRequest)
        counted, client = self.counted, event.client_id or ""
        counted.fetches += 1
        counted.request_bytes += _request_bytes(event.api_version, event, request)
        counted.layout_bytes += _request_bytes(ONE_LAYOUT, event, _request_by_name(request, names))
        counted.named += sum(len(topic.partitions) for topic in request.topics)
        if request.session_epoch <= 0:
            counted.full_again += client in self._began
            self._began.add(client)

    def _note_response(self, reply: Reply, names: dict[bytes, str]) -> None:
        response = reply.body
        assert isinstance(response, FetchResponse)
        topics = [replace(each, topic=_name(each, names), topic_id=NO_TOPIC_ID) for each in response.responses]
        counted, records_bytes = self.counted, 0
        for topic in topics:
            counted.returned += len(topic.partitions)
            for data in topic.partitions:
                records = bytes(data.records or b"")
                records_bytes += len(records)
                self._read(reply.tag.client_id, topic, data.partition, records)
        counted.response_bytes += _response_bytes(reply.api_version, reply, response) - records_bytes
        by_name = replace(response, session_id=response.session_id & _INT32, responses=topics)
        counted.layout_bytes += _response_bytes(ONE_LAYOUT, reply, by_name) - records_bytes

    def _read(self, client: str, topic: FetchTopicResponse, partition: int, records: bytes) -> None:
        place = client, topic.topic, partition
        for batch, _ in batches_of(records):
            sent, end = self._sent_up_to.get(place, 0), batch.last_offset + 1
            self.counted.twice += max(0, min(sent, end) - batch.base_offset)
            self._sent_up_to[place] = max(sent, end)


def _counts(tag: Tag) -> bool:
    """Return whether it is a fetcher's fetch. The request that only closes its session is none."""
    closes = tag.session_id != 0 and tag.session_epoch < 0
    return tag.api_key == ApiKey.FETCH and tag.client_id.startswith(FETCHERS) and not closes


def _name(topic: Any, names: dict[bytes, str]) -> str:
    return topic.topic or names.get(topic.topic_id, "")


def _request_by_name(request: FetchRequest, names: dict[bytes, str]) -> FetchRequest:
    def by_name(topics: Sequence[Any]) -> list[Any]:
        return [replace(topic, topic=_name(topic, names), topic_id=NO_TOPIC_ID) for topic in topics]

    named, forgotten = by_name(request.topics), by_name(request.forgotten)
    return replace(request, session_id=request.session_id & _INT32, topics=named, forgotten=forgotten)


def _request_bytes(version: int, event: Request, request: FetchRequest) -> int:
    parts = encode_request(event.api_key, version, event.correlation_id, event.client_id, request)
    return sum(len(part) for part in parts)


def _response_bytes(version: int, reply: Reply, response: FetchResponse) -> int:
    return sum(len(part) for part in encode_response(reply.api_key, version, reply.correlation_id, response))


PARTITIONS: Final = 5_000
LAST_BY_NAME: Final = 12
_NOW: Final = Now(1_000, 1_800_000_000_000)
_TOPIC: Final = "measured"
_CONNECTION: Final = 1


def bytes_of_a_partition(version: int, partitions: int = PARTITIONS) -> float:
    """Return the bytes that a session opened with this version of Fetch takes, divided by its partitions."""
    node = Node(0, BrokerConfig.parse({}), MemoryDisk(), 1)
    _carry_out(node, node.start(_NOW))
    _carry_out(node, node.handle(_NOW, Opened(_CONNECTION, "meter")))
    _call(node, ApiKey.CREATE_TOPICS, 7, create_topics_request([new_topic(_TOPIC, partitions, 1, {})], 60_000))
    topic_id = next(iter(node.broker.partitions.topic_names))
    by_name = version <= LAST_BY_NAME or version == FETCH_FIRST_REVISION
    wanted = [FetchPartition(each, 0, 1 << 20) for each in range(partitions)]
    topic = FetchTopic(_TOPIC if by_name else "", NO_TOPIC_ID if by_name else topic_id, wanted)
    opening = FetchRequest(max_wait_ms=0, session_epoch=0, topics=[topic])
    tracemalloc.start()
    try:
        before = _held()
        session_id = _fetch(node, version, opening)
        next_kind = INCREMENTAL_FETCH if version == FETCH_FIRST_REVISION else FULL_FETCH
        _fetch(node, version, FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=1, fetch_type=next_kind))
        taken = _held() - before
    finally:
        tracemalloc.stop()
    cached = node.broker.fetch_sessions.partitions_cached
    assert cached == partitions, f"the session caches {cached} of {partitions} partitions"
    return taken / partitions


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _fetch(node: Node, version: int, request: FetchRequest) -> int:
    response = _call(node, ApiKey.FETCH, version, request)
    assert isinstance(response, FetchResponse), "a fetch gets a response"
    assert response.error_code == 0, f"the fetch failed with error {response.error_code}"
    return response.session_id


def _call(node: Node, api_key: ApiKey, version: int, body: object) -> object:
    tag = Tag(api_key, version, "meter")
    (reply,) = _carry_out(node, node.handle(_NOW, Request(_CONNECTION, 0, api_key, version, "meter", body, tag)))
    return reply.body


def _carry_out(node: Node, effects: Sequence[Effect]) -> list[Reply]:
    """Carry out what is due now, each sync at once, and return the replies. Nothing that waits for later happens."""
    pending, replies = deque(effects), list[Reply]()
    while pending:
        effect = pending.popleft()
        event: Event | None = None
        if isinstance(effect, Reply):
            replies.append(effect)
        elif isinstance(effect, Sync):
            event = Synced(effect.token)
        elif isinstance(effect, SetTimer) and effect.deadline_us <= _NOW.mono_us:
            event = TimerFired(effect.timer)
        if event is not None:
            pending.extend(node.handle(_NOW, event))
    return replies


LOST: Final = "response_dropped"
SLOTS: Final = 4
"""The slots of a node under slot pressure. There are six fetchers."""


@dataclass(frozen=True, slots=True)
class RevisionVariant:
    """One kind of fetcher."""

    name: str
    revision: str
    """One of FETCHER_REVISIONS."""
    version: int
    behaviour: str = "refetching"
    """One of BEHAVIOURS."""
    apart: bool = False  # whether it is listed separately, as those that resend are: no stock client does


VARIANTS: Final = (
    RevisionVariant("final, Fetch 17", "final", 17),
    RevisionVariant("final, Fetch 12", "final", 12),
    RevisionVariant("first", "first", FETCH_FIRST_REVISION),
    RevisionVariant("no sessions, Fetch 17", "none", 17),
    RevisionVariant("first, resends", "first", FETCH_FIRST_REVISION, "resending", apart=True),
    RevisionVariant("final, resends", "final", 17, "resending", apart=True),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Faults of fetches.

    With two numbers instead of one, faults can follow each other, so that sometimes the response to the fetch that
    repairs a loss is lost, too.
    """

    name: str
    lost_every: tuple[int, ...] = ()
    """The numbers n for which every n-th response of each fetcher is lost; the seed draws the first."""
    doubled_every: tuple[int, ...] = ()
    """For each n, every n-th request of each fetcher arrives twice."""
    few_slots: bool = False


TROUBLES: Final = (
    Trouble("no loss"),
    Trouble("1 % of responses lost", lost_every=(100,)),
    Trouble("10 % of responses lost", lost_every=(19, 21)),
    Trouble("10 % of requests doubled", doubled_every=(19, 21)),
    Trouble(f"{SLOTS} slots, 10 % of responses lost", lost_every=(19, 21), few_slots=True),
)


@dataclass(frozen=True, slots=True)
class RevisionSize:
    """The size of an experiment."""

    seconds: float = 150.0
    partitions: int = 200  # partitions of a large session; a small one has half of them, the topic half as many again


WHOLE: Final = RevisionSize()


@dataclass(frozen=True, slots=True)
class RevisionRun:
    """One run."""

    variant: RevisionVariant
    trouble: Trouble
    seed: int
    size: RevisionSize = WHOLE


@dataclass(frozen=True, slots=True)
class RevisionResult:
    """The result of one run."""

    part: RevisionRun
    outcome: Outcome
    lost: int  # number of lost responses
    counted: Counted


def scenario_of(part: RevisionRun) -> Scenario:
    """Return what is played: one node, six fetchers, three of them with half as many partitions, and two producers."""
    variant, trouble, size = part.variant, part.trouble, part.size
    parsed = loader.parse(
        {
            "title": f"{variant.name}; {trouble.name}",
            "clauses": ["F-3"],
            "needs": ["interceptor"],
            "mutants": [],
            "guarantees": [],
            "min_fetches": 10,
            "min_acked": 10,
            "max_schedule_slip_ms": 3000,
            "cluster": {"config": {"max.incremental.fetch.session.cache.slots": SLOTS} if trouble.few_slots else {}},
            "load": {
                "seconds": size.seconds,
                "idle_appends_s": size.seconds / 2,
                "topics": [{"name": "hot", "partitions": size.partitions * 3 // 2}],
                "fetchers": [
                    _fetchers("small", variant, size.partitions // 2),
                    _fetchers("large", variant, size.partitions),
                ],
                "producers": [{"name": "writers", "count": 2, "topic": "hot", "rate_per_s": 10, "batch_records": 3}],
            },
            "fault": [
                *_faults(LOST, "response", trouble.lost_every),
                *_faults("request_duplicated", "request", trouble.doubled_every),
            ],
        },
        Path("revisions-compared.toml"),
    )
    return in_revision(parsed, variant.revision)


def _fetchers(name: str, variant: RevisionVariant, partitions: int) -> dict[str, object]:
    return {
        "name": name,
        "behaviour": variant.behaviour,
        "count": 3,
        "topic": "hot",
        "partitions": partitions,
        "poll_interval_ms": 1000,
        "max_wait_ms": 200,
        "newest_version": min(variant.version, 17),
    }


def _faults(kind: str, place: str, every: Sequence[int]) -> list[dict[str, object]]:
    match = {"api": "fetch", "client_id": "fetcher-*"}
    return [
        {"name": f"{kind}_{one}", "kind": kind, "on": place, "match": match, "nth": [2, one], "every": one}
        for one in every
    ]


def played(part: RevisionRun) -> RevisionResult:
    """Play one run."""
    verdict, world = play_seed(scenario_of(part), part.seed, also=(FetchMeter,))
    (meter,) = (check for check in world.checks if isinstance(check, FetchMeter))
    lost = sum(times for name, times in verdict.faults if name.startswith(LOST))
    return RevisionResult(part, verdict.outcome, lost, meter.counted)


def parts_for(seeds: Sequence[int]) -> list[RevisionRun]:
    """Return the runs by trouble and variant. Those that resend are played only where responses are lost."""
    return [
        RevisionRun(variant, trouble, seed)
        for trouble in TROUBLES
        for variant in VARIANTS
        for seed in seeds
        if trouble.lost_every or not variant.apart
    ]


Value: TypeAlias = Callable[[RevisionResult], float]
COSTS: Final[dict[str, Value]] = {
    "request, B": lambda seen: seen.counted.request_bytes / seen.counted.fetches,
    "response, B": lambda seen: seen.counted.response_bytes / seen.counted.fetches,
    "both in one layout, B": lambda seen: seen.counted.layout_bytes / seen.counted.fetches,
    "partitions named": lambda seen: seen.counted.named / seen.counted.fetches,
    "partitions returned": lambda seen: seen.counted.returned / seen.counted.fetches,
    "responses lost": lambda seen: seen.lost,
    "full fetches again": lambda seen: seen.counted.full_again,
    "records sent twice": lambda seen: seen.counted.twice,
}
"""The columns of the first table. Those up to the partitions are means of one fetch, the others sums over the run."""
KEPT: Final[dict[str, Value]] = {
    "sessions created": lambda seen: seen.counted.sessions,
    "evicted": lambda seen: seen.counted.evicted,
    "most partitions cached": lambda seen: seen.counted.cached,
}
"""The columns of the second table."""
Found: TypeAlias = dict[tuple[Trouble, RevisionVariant], list[RevisionResult]]


def on_the_wire(seen: RevisionResult) -> float:
    """Return the bytes of a fetch and its response, each in the variant's own layout."""
    return (seen.counted.request_bytes + seen.counted.response_bytes) / seen.counted.fetches


def grouped(seen: Sequence[RevisionResult]) -> Found:
    found: Found = {}
    for result in seen:
        found.setdefault((result.part.trouble, result.part.variant), []).append(result)
    return found


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the greatest value if these are written differently."""
    middle, least, most = (_number(each) for each in (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 20 and value != int(value) else f"{value:,.0f}"


def table(found: Found, columns: dict[str, Value]) -> list[str]:
    """Return the lines of a Markdown table. The trouble is named only in the first of its rows. A row of zeros is left
    out."""
    lines = [f"| trouble | variant | {' | '.join(columns)} |", "|" + " --- |" * (2 + len(columns))]
    before = None
    for (trouble, variant), seen in found.items():
        if not any(value(each) for value in columns.values() for each in seen):
            continue
        cells = [spread([value(each) for each in seen]) for value in columns.values()]
        first = trouble.name if trouble is not before else ""
        lines.append(f"| {first} | {variant.name} | {' | '.join(cells)} |")
        before = trouble
    return lines


def memory_lines() -> list[str]:
    """Say what a cached partition takes in each variant that has sessions."""
    measured = {
        variant.name: bytes_of_a_partition(variant.version) for variant in VARIANTS if variant.revision != "none"
    }
    return [f"Memory of a cached partition: {', '.join(f'{size:.0f} B ({name})' for name, size in measured.items())}"]


def _progress(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    parser.add_argument("--processes", type=int, default=2, help="how many runs are played at a time")
    parser.add_argument("--picture", type=Path, help="where to draw the first table (PNG)")
    words = parser.parse_args()
    if min(words.seeds, words.processes) < 1:
        parser.error("--seeds and --processes must be at least 1")
    parts, began, seen = parts_for(range(1, words.seeds + 1)), time.perf_counter(), list[RevisionResult]()
    for one in in_children(played, parts, words.processes):
        seen.append(one)
        if len(seen) % words.seeds == 0:
            done = f"{len(seen)} of {len(parts)} runs, {time.perf_counter() - began:.0f} s"
            _progress(f"  {done}: {one.part.trouble.name}; {one.part.variant.name}")
    found = grouped(seen)
    click.echo("\n".join([*table(found, COSTS), "", *table(found, KEPT), "", *memory_lines()]))
    if words.picture is not None:
        draw(found, words.picture)
    wrong = [each.part for each in seen if each.outcome is not Outcome.PASSED]
    for part in wrong:
        _progress(f"NOT PASSED: {part.trouble.name}; {part.variant.name}; seed {part.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())


COLOURS: Final = ("#1f6feb", "#8a63d2", "#d9730d", "#8c8c8c", "#b58900", "#0b3d91")
"""The colours of the variants, in the order in which they first appear."""
STEP: Final = 0.13
STYLE: Final[Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": "#d9d9d9",
    "legend.frameon": False,
}
"""Matplotlib's settings, whose names its type hints enumerate."""


def draw(found: Found, path: Path) -> None:
    """Write a PNG with two panels: the bytes of a fetch, and full fetches again."""
    troubles = list(dict.fromkeys(trouble for trouble, _ in found))
    with rc_context(STYLE):
        picture = Figure(figsize=(10.4, 0.9 + 0.95 * len(troubles)), layout="constrained")
        left, right = picture.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.set_title("bytes of one fetch without records (hollow: in one layout)")
        _points(left, found, troubles, COSTS["both in one layout, B"], hollow=True)
        _points(left, found, troubles, on_the_wire)
        left.set_xscale("log")
        left.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        left.xaxis.set_major_formatter(FuncFormatter(_plain))
        left.xaxis.set_minor_formatter(NullFormatter())
        right.set_title("full fetches again, in one run")
        _points(right, found, troubles, COSTS["full fetches again"])
        right.set_xscale("symlog", linthresh=10)
        right.set_xlim(left=-1)
        right.xaxis.set_major_formatter(FuncFormatter(_plain))
        left.set_yticks(range(len(troubles)), [trouble.name.replace(", ", ",\n") for trouble in troubles])
        left.set_ylim(len(troubles) - 0.5, -0.5)
        handles, names = right.get_legend_handles_labels()
        picture.legend(handles, names, loc="outside upper center", ncols=len(names))
        picture.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})


def _points(axes: Axes, found: Found, troubles: Sequence[Trouble], value: Value, hollow: bool = False) -> None:
    names = list(dict.fromkeys(variant.name for _, variant in found))
    labelled = set[str]()
    for (trouble, variant), seen in found.items():
        here = [other for at, other in found if at == trouble]
        y = troubles.index(trouble) + (here.index(variant) - (len(here) - 1) / 2) * STEP
        low, middle, high = _spread(seen, value)
        colour = COLOURS[names.index(variant.name)]
        axes.errorbar(
            middle,
            y,
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            markersize=5,
            color=colour,
            markerfacecolor="white" if hollow else colour,
            label=None if variant.name in labelled else variant.name,
        )
        labelled.add(variant.name)
        if not hollow:
            axes.annotate(_plain(middle), (high, y), (9, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.grid(True, axis="x")
    axes.margins(x=0.12)


def _spread(seen: Sequence[RevisionResult], value: Callable[[RevisionResult], float]) -> tuple[float, float, float]:
    values = [value(result) for result in seen]
    return min(values), median(values), max(values)


def _plain(value: float, _: object = None) -> str:
    return f"{value:,.0f}"
