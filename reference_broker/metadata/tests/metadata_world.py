"""The metadata parts of one node around a log in memory: the test commits, runs timers and takes leadership away."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.controller import QuorumController
from reference_broker.controller.write_operations import (
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
    raise_bug,
)
from reference_broker.metadata.loader import MetadataBatch, MetadataLoader, decoded
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from reference_broker.ports.disk import DiskError, MemoryDisk
from reference_broker.ports.node_ports import NodeContext, Now
from reference_broker.ports.slicing import Sliced
from reference_broker.quorum.metadata_log import LogBatch
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch, Provenance

BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()


@dataclass
class ManualPorts:
    """Time passes only in ``advance``; timers fire in ``run`` when due. ``sent``: requests to others."""

    now_us: int = 5_000_000
    timers: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    notes: list[tuple[str, dict[str, int | str]]] = field(default_factory=list)
    sent: list[tuple[Any, ...]] = field(default_factory=list)
    last: int = 0
    events: int = 0

    def now(self) -> Now:
        return Now(self.now_us, 1_700_000_000_000 + self.now_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.last += 1
        self.timers[self.last] = (deadline_us, fire)
        return self.last

    def cancel_timer(self, timer: int) -> None:
        self.timers.pop(timer, None)

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:  # noqa: ARG002
        raise AssertionError(f"nothing here syncs by itself: {paths}")

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    def send(self, *request: Any) -> None:
        self.sent.append(request)

    def step(self) -> bool:
        """One due timer, the earliest; False if there is none."""
        due = [(deadline, number) for number, (deadline, _) in self.timers.items() if deadline <= self.now_us]
        if not due:
            return False
        self.events += 1
        self._fire(min(due)[1])
        return True

    def _fire(self, number: int) -> None:
        _, fire = self.timers.pop(number)
        fire()

    def run(self, most: int = 100_000) -> None:
        while self.step():
            most -= 1
            assert most, "timers without end"

    def advance(self, milliseconds: int) -> None:
        """Time passes as it should: every timer fires when it is due."""
        end_us = self.now_us + milliseconds * 1000
        self.run()
        while self.timers and min(deadline for deadline, _ in self.timers.values()) <= end_us:
            self.now_us = max(self.now_us, min(deadline for deadline, _ in self.timers.values()))
            self.run()
        self.now_us = end_us

    def notes_of(self, what: str) -> list[dict[str, int | str]]:
        return [fields for name, fields in self.notes if name == what]


@dataclass
class LogInMemory:
    """As ``MetadataLog`` reads: whole batches below an end."""

    coded: list[LogBatch] = field(default_factory=list)
    start_offset: int = 0

    @property
    def content(self) -> list[MetadataBatch]:
        """The same batches, decoded."""
        return [decoded(each) for each in self.coded]

    @property
    def end(self) -> OffsetAndEpoch:
        if not self.coded:
            return OffsetAndEpoch(self.start_offset, 0)
        last = self.coded[-1].provenance
        return OffsetAndEpoch(last.offset + 1, last.epoch)

    @property
    def end_offset(self) -> int:
        return self.end.offset

    def append(self, values: Sequence[bytes], epoch: int, is_control: bool = False) -> Provenance:
        offset = self.end.offset + (1 if is_control else len(values)) - 1
        found = Provenance(offset, epoch, 7)
        self.coded.append(LogBatch(tuple(values), found, 61 + 10 * len(values)))
        return found

    def batches(self, offset: int, end_offset: int) -> Iterator[LogBatch]:
        for batch in self.coded:
            if offset <= batch.provenance.offset < end_offset:
                yield batch


@dataclass
class LeadershipInMemory:
    """A quorum of which the test is the majority: ``won``, ``lost`` and the world's ``commit``."""

    log: LogInMemory
    epoch: int = 0
    leader_id: int = -1
    is_leader: bool = False
    failing: int = 0
    """Number of appends that raise DiskError; the log stays as it is."""
    fail_in: int | None = None
    """Number of appends that succeed before ``failing`` counts."""
    resigned: list[str] = field(default_factory=list)
    """The reasons of its resignations."""
    on_resigned: Callable[[], None] = lambda: None

    @property
    def reported_leader_id(self) -> int:
        return self.leader_id

    def append(self, values: Sequence[bytes]) -> Provenance:
        if not self.is_leader:
            raise NotLeader
        if self.fail_in:
            self.fail_in -= 1
        elif self.failing:
            self.failing -= 1
            raise DiskError("no space left")
        return self.log.append(values, self.epoch)

    def resign(self, why: str) -> None:
        assert self.is_leader, "only a leader resigns"
        self.resigned.append(why)
        self.on_resigned()


@dataclass
class StoreInMemory:
    latest: OffsetAndEpoch | None = None


@dataclass
class AnyChange(ControllerWriteOperation[ApiError | None]):
    """A change whose plan is the test's."""

    name: str
    planned: Callable[[], Records | Sliced[Records]]
    atomic: bool = True

    def plan(self, context: PlanContext) -> Records | Sliced[Records]:  # noqa: ARG002 - the plan knows its records
        return self.planned()

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused


class MetadataWorld:
    """Node 1. ``log`` may come from an earlier life."""

    def __init__(self, log: LogInMemory | None = None, seed: int = 0, **config: str) -> None:
        self.ports = ManualPorts()
        self.log = log if log is not None else LogInMemory()
        self.quorum = LeadershipInMemory(self.log)
        self.config = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
        self.disk = MemoryDisk()
        self.loader = MetadataLoader(self.node_context(seed), self.log, StoreInMemory())  # type: ignore[arg-type]
        self.controller = QuorumController(
            self.node_context(seed + 1),
            self.config,
            "cluster",
            self.loader,
            self.quorum,
            Random(1),
        )
        self.quorum.on_resigned = lambda: self.lose(to=-1)
        self.published: list[tuple[Any, Any]] = []
        self.loader.subscribe(lambda delta, image: self.published.append((delta, image)))
        self.high_watermark = 0

    def submit(
        self,
        plan: Callable[[], Records | Sliced[Records]],
        completed: Callable[[ApiError | None], None] = lambda _: None,
        *,
        name: str = "change",
        atomic: bool = True,
    ) -> None:
        """Propose a change whose plan is the test's."""
        self.controller.append_write_event(AnyChange(name, plan, atomic), completed, raise_bug)

    def node_context(self, seed: int) -> NodeContext:
        return NodeContext(1, self.disk, self.ports, Random(seed))

    def win(self) -> None:
        """This node leads a new epoch; its first record is not committed yet."""
        self.quorum.epoch = max(self.quorum.epoch, self.log.end.epoch) + 1
        self.quorum.leader_id, self.quorum.is_leader = 1, True
        start_offset = self.log.end.offset
        self.log.append((), self.quorum.epoch, is_control=True)
        self.controller.activation.leadership_won(self.quorum.epoch, start_offset)

    def lose(self, to: int = 2) -> None:
        """Another node leads; what is not committed here is cut off."""
        self.quorum.is_leader, self.quorum.leader_id = False, to
        self.controller.activation.leadership_lost(self.quorum.epoch)
        self.controller.activation.leader_changed(to, self.quorum.epoch + 1)

    def cut(self) -> None:
        """Remove the records above the high watermark."""
        self.log.coded = [each for each in self.log.coded if each.provenance.offset < self.high_watermark]

    def commit(self, to: int | None = None) -> None:
        """Everything below ``to`` (an offset; None: all) is committed and loaded; timers run."""
        self.high_watermark = self.log.end.offset if to is None else to
        self.loader.catch_up(self.high_watermark)
        self.ports.run()

    def settle(self) -> None:
        """Timers and commits until nothing is left."""
        while True:
            end = self.log.end.offset
            self.ports.run()
            self.commit()
            if self.log.end.offset == end and self.high_watermark == end:
                return

    def kinds(self) -> list[str]:
        """Return the kind of each batch in the log."""
        return [_kind(batch) for batch in self.log.content]


def started(**config: Any) -> MetadataWorld:
    """An active controller with its first records committed."""
    world = MetadataWorld(**config)
    world.win()
    world.settle()
    return world


def topic_records(name: str, topic_id: bytes, partitions: int = 1, node_id: int = 1) -> list[MetadataRecord]:
    made: list[MetadataRecord] = [TopicRecord(name=name, topic_id=topic_id)]
    made += (
        PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=(node_id,),
            isr=(node_id,),
            leader=node_id,
            leader_epoch=0,
            partition_epoch=0,
            directories=(bytes(16),),
        )
        for index in range(partitions)
    )
    return made


def topic_id(number: int) -> bytes:
    return (1000 + number).to_bytes(16, "big")


def _kind(batch: MetadataBatch) -> str:
    if not batch.records:
        return "leader"
    names = {BeginTransactionRecord: "begin", EndTransactionRecord: "end", AbortTransactionRecord: "abort"}
    return names.get(type(batch.records[0]), f"{len(batch.records)}")
