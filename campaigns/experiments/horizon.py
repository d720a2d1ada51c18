"""Compare KIP-630's snapshots with the tombstone horizon, which its page rejects, and with neither.

``python -m campaigns.experiments.horizon --seeds 5`` prints the table of docs/experiments.md. It takes some minutes.
All variants have the same load and the same cut, in the simulator: a producer writes and deletes keys in turn, and one
follower and one reader are cut off for a while. Each cell is the median over the seeds, with the least and the greatest
value behind it if they differ.

Snapshots exist only for the metadata log (S-13). There the same keys are settings of topics, which ``SettingsWriter``
sets and deletes at the same times, and an observer is cut off. No client reads that log, so it has no reader.

``CatchUp`` measures how a follower, a reader or an observer catches up: the bytes of keys and values that it receives
from the heal until it has all that was committed at the heal. Then its state is compared with the result of the writes.
"""

import argparse
import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

import click

from bench.fleet.behaviours.bodies import set_topic_configs_request
from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.behaviours.script import Steps
from campaigns.experiments.revisions import spread
from chaos.checks.check import Kind, ReplicaCheck
from chaos.checks.guarantee_selection import is_judged
from chaos.checks.log.batches import PlainRecord, batches_of, read_batches, records_in
from chaos.checks.log.compacted_log import Compacted
from chaos.checks.replication.replica_view import Replicated
from chaos.search.children import in_children
from chaos.seeds import random_for
from chaos.sim.fleet import SimClient
from chaos.sim.world import SimWorld
from reference_broker.core.events import Effect, Event, PeerReply, Reply, Request
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from scenarios import loader
from scenarios.model import Scenario

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

    from chaos.checks.check import CheckContext
    from reference_broker.core.node import Node


NEVER_US: Final = 1 << 62
CONFIG_RECORD: Final = b"\x04"
"""The type of a setting's record, behind the version of the frame (KIP-631, ConfigRecord.json)."""
State = dict[bytes | None, int]
"""The offset of the newest record of each key, as one replica or reader knows it, without keys that were deleted."""


@dataclass(slots=True)
class Caught:
    """The catch-up of one follower or client after the heal."""

    after_us: int = -1
    """Time from the heal; -1: it never caught up."""
    sent_bytes: int = 0
    """All bytes that it was sent."""
    again_bytes: int = 0
    """Those that it had been sent before the heal."""
    restarts: int = 0
    """How often it restarted from the beginning."""
    wrong: int = -1
    """Number of keys with another value than the one written; -1 if not compared."""


class CatchUp(ReplicaCheck):
    """Judges nothing. ``caught`` is the result."""

    who: ClassVar[str] = ""

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.replicas.on_viewed.append(self.viewed)
        self.caught = Caught()
        self._target = -1

    @abstractmethod
    def _heal_us(self) -> int:
        """Return when the cut ends, as far as that is known."""

    @abstractmethod
    def _begin(self) -> int:
        """Note its position at the heal, and return the offset that it must reach."""

    @abstractmethod
    def _position(self) -> int:
        """Return up to which offset it has everything, or -1 while it does not know that it has."""

    @abstractmethod
    def _wrong(self) -> int:
        """Return the number of keys that it holds wrongly, or -1 if that is unknown now."""

    def viewed(self, at_us: int, node: "Node") -> None:  # noqa: ARG002
        heal_us = self._heal_us()
        if at_us < heal_us:
            return
        if self._target < 0:
            self._target = self._begin()
        caught = self.caught
        if self._position() < self._target:
            caught.after_us = caught.wrong = -1  # It has restarted, behind the target.
            return
        if caught.after_us < 0:
            caught.after_us = at_us - heal_us
        if caught.wrong < 0:
            caught.wrong = self._wrong()

    @property
    def _is_counted(self) -> bool:
        return self._target >= 0 and self.caught.after_us < 0

    def _got(self, record: PlainRecord, again: bool) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        self.caught.sent_bytes += size
        self.caught.again_bytes += size if again else 0


class NodeCaughtUp(CatchUp):
    """A node whose links to all others were cut."""

    acts_on: ClassVar[tuple[Kind, ...]] = (PeerReply,)

    @property
    def _node_id(self) -> int:
        ends = Counter(node_id for pair in self.context.quorum.fault_times.links for node_id in pair)
        return ends.most_common(1)[0][0] if ends else -1

    def _heal_us(self) -> int:
        return max(self.context.quorum.fault_times.links.values(), default=NEVER_US)


class FollowerCaughtUp(NodeCaughtUp):
    """A follower of the compacted partition."""

    who = "follower"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self._had = self._end = -1

    def _begin(self) -> int:
        partition = _partition(self.context)
        self._had = self._end = partition.copies[self._node_id].held.end_offset
        return partition.committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._is_counted and node.broker.node_id == self._node_id:
            for record in _records_for_replicas(event):
                self._got(record, record.offset < self._had)

    def _position(self) -> int:
        log = _partition(self.context).copies[self._node_id].log
        if log is None:
            return -1
        self.caught.restarts += log.log_end_offset < self._end
        self._end = log.log_end_offset
        return -1 if log.horizon.remembered else self._end

    def _wrong(self) -> int:
        partition = _partition(self.context)
        log = partition.copies[self._node_id].log
        assert log is not None
        assert partition.compacted is not None
        end = min(self._end, partition.committed_end)
        held: State = {}
        for _, data in read_batches(log, log.log_start_offset, end):
            _fold(held, records_in(data))
        return _differing(partition.compacted, held, end)


class ReaderCaughtUp(CatchUp):
    """The reader whose responses are lost until ``heal_us``, which the caller sets. It has the records that it got, as
    far as it fetched beyond them. If it fetches from an earlier offset, it has forgotten all."""

    who = "reader"
    acts_on: ClassVar[tuple[Kind, ...]] = (ApiKey.FETCH.value,)
    client_id: ClassVar[str] = "member-0"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.heal_us = NEVER_US
        self._requested_offset = self._had = 0
        self._returned: list[PlainRecord] = []
        self._held: State = {}

    def _heal_us(self) -> int:
        return self.heal_us

    def _begin(self) -> int:
        self._had = self._requested_offset
        return _partition(self.context).committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is Request and event.tag.client_id == self.client_id and isinstance(event.body, FetchRequest):
            for topic in event.body.topics:
                for partition in topic.partitions:
                    self._request(partition.fetch_offset)
        for effect in effects:
            if type(effect) is Reply and effect.tag.client_id == self.client_id:
                records = list(_records_of(effect.body))
                self._returned = [each for each in records if each.offset >= self._requested_offset] or self._returned
                for record in records if self._is_counted else ():
                    self._got(record, record.offset < self._had)

    def _request(self, offset: int) -> None:
        if offset < self._requested_offset:
            self._held.clear()
            self.caught.restarts += 1
        elif offset > self._requested_offset:
            _fold(self._held, (record for record in self._returned if record.offset < offset))
        self._requested_offset = offset

    def _position(self) -> int:
        return self._requested_offset

    def _wrong(self) -> int:
        compacted = _partition(self.context).compacted
        assert compacted is not None
        return _differing(compacted, self._held, self._requested_offset)


class ObserverCaughtUp(NodeCaughtUp):
    """The observer of the metadata log, whose state are the settings of topics. Only their records count. What it had
    been sent before the heal, byte for byte, counts as sent again."""

    who = "observer"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self._known: set[bytes] = set()
        self._snapshot = bytearray()

    def _begin(self) -> int:
        return self.context.quorum.committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if node.broker.node_id != self.context.quorum.voters:  # The observer comes after the voters.
            return
        if type(event) is not PeerReply or event.channel is not Channel.RAFT:
            return
        for record in _records_of(event.body):
            self._count_record(record)
        for piece in _pieces_of(event.body):
            self.caught.restarts += self._is_counted and piece.position == 0
            del self._snapshot[piece.position :]
            self._snapshot += piece.unaligned_records
            if len(self._snapshot) == piece.size:
                for _, data in batches_of(bytes(self._snapshot)):
                    for record in records_in(data):
                        self._count_record(record)

    def _count_record(self, record: PlainRecord) -> None:
        value = record.value or b""
        if value[1:2] != CONFIG_RECORD:
            return
        if self._is_counted:
            self._got(record, value in self._known)
        elif self._target < 0:
            self._known.add(value)

    def _position(self) -> int:
        replica = self.context.quorum.nodes[self._node_id].replica
        return -1 if replica is None else int(replica.loader.last_offset) + 1

    def _wrong(self) -> int:
        """Compare with another node that has read as far."""
        loader = self.context.quorum.nodes[self._node_id].replica.loader
        for other in self.context.quorum.nodes:
            if (
                other.node_id != self._node_id
                and other.replica is not None
                and other.replica.loader.last_offset == loader.last_offset
            ):
                return len(_settings(loader.image) ^ _settings(other.replica.loader.image))
        return -1


def _partition(context: "CheckContext") -> Replicated:
    (found,) = (partition for partition in context.replicas.partitions.values() if partition.compacted is not None)
    return found


def _records_for_replicas(event: Event | None) -> Iterator[PlainRecord]:
    if type(event) is PeerReply and event.channel is Channel.REPLICA:
        yield from _records_of(event.body)


def _records_of(body: object) -> Iterator[PlainRecord]:
    if isinstance(body, FetchResponse):
        for topic in body.responses:
            for partition in topic.partitions:
                for header, data in batches_of(bytes(partition.records or b"")):
                    yield from () if header.control else records_in(data)


def _pieces_of(body: Any) -> Iterator[Any]:
    if type(body).__name__ == "FetchSnapshotResponse":
        for topic in body.topics:
            yield from topic.partitions


def _fold(held: State, records: Iterator[PlainRecord]) -> None:
    for record in records:
        if record.value is None:
            held.pop(record.key, None)
        else:
            held[record.key] = record.offset


def _differing(compacted: Compacted, held: State, end: int) -> int:
    """Return the number of keys of which others than these should be held by who has read up to ``end``. A key with a
    newer record behind that is omitted: a cleaner may have taken what it replaces."""
    right: State = {}
    for offset in compacted.between(0, end):
        record = compacted.records[offset]
        _fold(right, iter([PlainRecord(offset, record.timestamp_ms, record.key, record.value)]))
    newer = {compacted.records[offset].key for offset in compacted.between(end, NEVER_US)}
    return sum(held.get(key) != right.get(key) for key in held.keys() | right.keys() if key not in newer)


def _settings(image: Any) -> set[tuple[Any, ...]]:
    return {(owner, *each) for owner, settings in image.configs.items() for each in settings.items()}


SETTINGS: Final = (
    "retention.bytes",
    "retention.ms",
    "flush.messages",
    "flush.ms",
    "segment.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "delete.retention.ms",
)
"""Settings that may have any large number, and do nothing to a topic without records."""
FIRST_VALUE: Final = 1_000_000_000_000
"""A value says which record it is, so each is another one."""
RESPONSE_LIMIT_US: Final = 3_000_000


def topics_for(keys: int) -> list[str]:
    """Return the names of the topics whose settings make that many keys."""
    return [f"settings-{number}" for number in range(-(-keys // len(SETTINGS)))]


class SettingsWriter(KeyedProducer):
    """Sends to the active controller, and retries until it has responded. Setting the same value twice changes
    nothing."""

    def run(self) -> Steps[None]:
        while not self.stopping and not (yield from self.refresh()):
            yield from self.back_off()
        yield from self.loop.run(self._send_slot)

    def _send_slot(self, due_us: int) -> Steps[None]:
        operation = self.journal.begin("alter_configs", due_us, sent=False)
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        (record,) = self.records.make(self.plan.partitions[0], sequence, 1, self.now.wall_ms)
        named = list(product(topics_for(self.plan.keys), SETTINGS))[sequence % self.plan.keys]
        value = None if record.value is None else str(FIRST_VALUE + sequence)
        done = False
        while not done and not self.gives_up:
            done = yield from self._altered(*named, value)
            if not done:
                self.disconnect()
                yield from self.back_off()
                yield from self.refresh()
        self.succeeded()
        self.journal.end(operation, "ok" if done else "info")

    def _altered(self, topic: str, setting: str, value: str | None) -> Steps[bool]:
        controller = self.metadata.nodes.get(self.metadata.controller_id)
        if controller is None or not (yield from self.connect_to_node(controller)):
            return False
        version = self.settings.versions.incremental_alter_configs
        body = set_topic_configs_request([topic], {setting: value})
        response = yield from self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, body, RESPONSE_LIMIT_US)
        if isinstance(response, str):
            return False
        altered = cast("IncrementalAlterConfigsResponse", response.body).responses
        return all(int(each.error_code.value) == 0 for each in altered)


GONE_AFTER_MS: Final = 3_000
"""Tombstones may go after this time, and so may the metadata log before a snapshot."""
PIECE_BYTES: Final = 4_096
"""Size of a Fetch response in bytes, as if the log were much larger than one response."""


@dataclass(frozen=True, slots=True)
class HorizonVariant:
    """One setting of the broker, and who catches up."""

    name: str
    kinds: tuple[type[CatchUp], ...]
    """Measure those that are cut off."""
    horizon: bool = False
    snapshots: bool = False
    dirty_ratio: float = 0.01
    """The cleaner waits until this share of the log is dirty."""


BOTH: Final = (FollowerCaughtUp, ReaderCaughtUp)
VARIANTS: Final = (
    HorizonVariant("snapshots (S)", (ObserverCaughtUp,), snapshots=True),
    HorizonVariant("horizon (H)", BOTH, horizon=True),
    HorizonVariant("horizon (H), lazy cleaner", BOTH, horizon=True, dirty_ratio=0.25),
    HorizonVariant("neither", BOTH),
)


@dataclass(frozen=True, slots=True)
class Cut:
    name: str
    seconds: float


CUTS: Final = (Cut("2 s", 2.0), Cut("12 s", 12.0))
"""Shorter and longer than tombstones stay."""


@dataclass(frozen=True, slots=True)
class HorizonSize:
    """The size of a run."""

    keys: int = 600
    before_s: float = 20.0
    """From the load's start to the cut."""
    after_s: float = 9.0
    """How long the load continues after the heal."""


WHOLE: Final = HorizonSize()


@dataclass(frozen=True, slots=True)
class HorizonRun:
    """One run."""

    variant: HorizonVariant
    cut: Cut
    seed: int
    size: HorizonSize = WHOLE


@dataclass(frozen=True, slots=True)
class HorizonResult:
    """The result of one run."""

    part: HorizonRun
    caught: dict[str, Caught]
    """How each catch-up went, by ``CatchUp.who``."""
    broken: tuple[str, ...]
    """The guarantees that do not hold."""


def scenario_of(part: HorizonRun) -> Scenario:
    """Return what is played: three voters, an observer, and a compacted topic with three replicas."""
    variant, cut, size = part.variant, part.cut, part.size
    topics: list[dict[str, Any]] = [
        {
            "name": "table",
            "partitions": 1,
            "replicas": 3,
            "config": {
                "min.insync.replicas": 2,
                "cleanup.policy": "compact",
                "segment.bytes": 4_000,
                "min.cleanable.dirty.ratio": variant.dirty_ratio,
                "delete.retention.ms": GONE_AFTER_MS,
            },
        }
    ]
    reader = {
        "name": "readers",
        "count": 1,
        "topics": ["table"],
        "protocol": "assigned",
        "view": True,
        "tombstone_horizon": variant.horizon,
        "metadata_epoch": False,
        "max_bytes": PIECE_BYTES,
        "poll_interval_ms": 100,
    }
    node = "observer" if variant.snapshots else "partition_follower"
    faults: list[dict[str, Any]] = [
        {
            "name": "node_cut_off",
            "kind": "node_isolated",
            "node": node,
            "at_s": size.before_s,
            "sim_at_s": size.before_s,
            "duration_s": cut.seconds,
        },
        {
            "name": "reader_cut_off",
            "kind": "response_dropped",
            "on": "response",
            "node": "any",
            "match": {"api": "fetch", "client_id": ReaderCaughtUp.client_id},
            "every": 1,
            "times": 0,
            "after_s": size.before_s,
            "until_s": size.before_s + cut.seconds,
        },
    ]
    if variant.snapshots:
        others = {"partitions": 1, "replicas": 3, "config": {"min.insync.replicas": 2}}
        topics += [{"name": topic, **others} for topic in topics_for(size.keys)]
    return loader.parse(
        {
            "title": f"{variant.name}; cut off for {cut.name}",
            "clauses": ["S-15", "H-3", "H-4"],
            "needs": ["interceptor", "proxy", "drafts"],
            "mutants": [],
            "guarantees": [],
            "min_fetches": 0,
            "min_acked": 0,
            "max_schedule_slip_ms": 30_000,
            "cluster": {"nodes": 3, "observers": 1, "config": _config(variant)},
            "load": {
                "seconds": size.before_s + cut.seconds + size.after_s,
                "request_timeout_ms": 1_000,
                "topics": topics,
                "producers": [
                    {
                        "name": "writer",
                        "count": 1,
                        "topic": "table",
                        "rate_per_s": 40,
                        "batch_records": 1,
                        "record_bytes": 48,
                        "keys": size.keys,
                        "delete_percent": 40,
                    }
                ],
                "groups": [] if variant.snapshots else [reader],
            },
            "fault": faults[:1] if variant.snapshots else faults,
        },
        Path("horizon-compared.toml"),
    )


def _config(variant: HorizonVariant) -> dict[str, object]:
    return {
        "crucible.tombstone.horizon.enable": variant.horizon,
        "broker.heartbeat.interval.ms": 300,
        "broker.session.timeout.ms": 1_500,
        "replica.lag.time.max.ms": 1_500,
        "log.cleaner.backoff.ms": 200,
        "replica.fetch.max.bytes": PIECE_BYTES,
        "replica.fetch.response.max.bytes": PIECE_BYTES,
        "crucible.metadata.snapshot.fetch.max.bytes": PIECE_BYTES,
        "metadata.log.segment.bytes": PIECE_BYTES,
        "metadata.log.max.record.bytes.between.snapshots": 2 * PIECE_BYTES,
        "metadata.max.retention.ms": GONE_AFTER_MS,
        "crucible.metadata.snapshot.keep.ms": GONE_AFTER_MS,
    }


class Compared(SimWorld):
    """A run that knows when its cut ends. With snapshots its writers write to the metadata log."""

    part: HorizonRun

    def _load(self, writers: Sequence[SimClient], workers: Sequence[SimClient], readers: Sequence[SimClient]) -> None:
        for check in self.checks:
            if isinstance(check, ReaderCaughtUp):
                heal_s = self.part.size.before_s + self.part.cut.seconds
                check.heal_us = self.agenda.now_us + int(heal_s * 1_000_000)
        if self.part.variant.snapshots:
            writers = [self._client(writer) for writer in self._writers_of_settings(writers)]
        super()._load(writers, workers, readers)

    def _writers_of_settings(self, writers: Sequence[SimClient]) -> Iterator[SettingsWriter]:
        for writer in writers:
            if isinstance(writer.behaviour, KeyedProducer):
                random = random_for(self.seed, writer.behaviour.process)
                yield SettingsWriter(writer.behaviour.plan, writer.behaviour.settings, random)


def played(part: HorizonRun) -> HorizonResult:
    """Play one run. Raise RunStuckError if it does not come to its end."""
    world = Compared(scenario_of(part), part.seed, also=part.variant.kinds)
    world.part = part
    world.play()
    broken = {
        violation.guarantee
        for check in world.checks
        for violation in check.violations
        if is_judged(world.scenario, violation.guarantee)
    }
    caught = {check.who: check.caught for check in world.checks if isinstance(check, CatchUp)}
    return HorizonResult(part, caught, tuple(sorted(broken)))


def parts_for(seeds: Sequence[int]) -> list[HorizonRun]:
    return [HorizonRun(variant, cut, seed) for cut in CUTS for variant in VARIANTS for seed in seeds]


Value: TypeAlias = Callable[[Caught], float]
COLUMNS: Final[dict[str, Value]] = {
    "keys held wrongly": lambda caught: caught.wrong,
    "bytes sent again": lambda caught: caught.again_bytes,
    "bytes sent in all": lambda caught: caught.sent_bytes,
    "ms to catch up": lambda caught: caught.after_us // 1000,
    "restarts": lambda caught: caught.restarts,
}
Row: TypeAlias = tuple[Cut, HorizonVariant, str]
"""The cut, the variant, and who was cut off."""
Found: TypeAlias = dict[Row, list[Caught]]


def grouped(seen: Sequence[HorizonResult]) -> Found:
    found: Found = {}
    for result in seen:
        for who, caught in result.caught.items():
            found.setdefault((result.part.cut, result.part.variant, who), []).append(caught)
    return found


def table(found: Found) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| cut off for | variant | who | {' | '.join(COLUMNS)} |", "|" + " --- |" * (3 + len(COLUMNS))]
    before = None
    for (cut, variant, who), caught in found.items():
        cells = [spread([value(each) for each in caught]) for value in COLUMNS.values()]
        lines.append(f"| {cut.name if cut != before else ''} | {variant.name} | {who} | {' | '.join(cells)} |")
        before = cut
    return lines


def _progress(line: str) -> None:
    click.echo(line, err=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on")
    parser.add_argument("--processes", type=int, default=2, help="how many runs are played at a time")
    words = parser.parse_args()
    if min(words.seeds, words.processes) < 1:
        parser.error("--seeds and --processes must be at least 1")
    parts, began, seen = parts_for(range(1, words.seeds + 1)), time.perf_counter(), list[HorizonResult]()
    for one in in_children(played, parts, words.processes):
        seen.append(one)
        if len(seen) % words.seeds == 0:
            done = f"{len(seen)} of {len(parts)} runs, {time.perf_counter() - began:.0f} s"
            _progress(f"  {done}: {one.part.cut.name}; {one.part.variant.name}")
    click.echo("\n".join(table(grouped(seen))))
    wrong = [each for each in seen if each.broken]
    for each in wrong:
        part = each.part
        _progress(f"BROKEN: {part.cut.name}; {part.variant.name}; seed {part.seed}: {', '.join(each.broken)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
