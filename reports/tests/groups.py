"""A legal consumer group and a mirror beside the log's history: members come and go, the coordinator moves, one member
speaks the draft versions with metadata epochs and one does not."""

import json
from dataclasses import asdict, dataclass, field

from reports.rows import OperationRow, PositionRow, TraceRow
from reports.tests.history import int_of

Row = dict[str, object]
Tables = dict[str, list[Row]]
TOPIC, PARTITIONS = "orders", 3
GROUP, MIRROR = "billing", "mirror-0"
NEW, OLD = "member-0", "member-1"
"""The client with metadata epochs, and the one without."""
EVERY_US = 250_000


@dataclass(frozen=True, slots=True)
class PlayedRebalance:
    """A rebalance of the history, from the first request to the last member that has its assignment."""

    from_us: int
    until_us: int

    @property
    def took_us(self) -> int:
        return self.until_us - self.from_us


NEW_IS_ALONE = PlayedRebalance(250_000, 300_000)
OLD_JOINS = PlayedRebalance(1_500_000, 1_620_000)
OLD_LEAVES = PlayedRebalance(5_000_000, 5_200_000)
LEAVE_US = 10_000
"""The time from the revocation of a leaving member's partitions to the end of its membership."""
ROUND_TRIP_US = 900
COORDINATOR_DIES_US = 3_000_000
COORDINATOR_LOADED_US = 3_300_000
"""When the next coordinator serves the group."""


@dataclass
class Groups:
    """The group and the mirror as they are at a time of the history, and the tables that it is written to."""

    tables: Tables
    index: dict[str, int] = field(default_factory=dict)
    """number of the last operation of each process"""
    owner: dict[int, str] = field(default_factory=dict)
    """member of each partition"""
    position: dict[int, int] = field(default_factory=dict)
    """next offset of each partition's owner"""
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """offset and metadata epoch of each partition, as stored"""
    generation: int = 0
    coordinator: int = 0
    """node ID"""
    epoch: int = -1
    """metadata epoch of the new client"""
    seq: int = 2_000_000
    """sequence number of the last row of the trace"""

    def play(self) -> None:
        """Generation 1 has the new client alone; in 2 the old one has partition 2 and begins behind what was read but
        not committed; in 3 it has left. The coordinator dies at 3 s. One Metadata response is too old and dropped."""
        self.metadata(node=0, epoch=4, at_us=240_000)
        self.rebalance(owners={0: NEW, 1: NEW, 2: NEW}, played=NEW_IS_ALONE)
        self.work(from_us=NEW_IS_ALONE.until_us, until_us=1_400_000)
        self.poll(NEW, partition=2, at_us=1_450_000)
        self.rebalance(owners={0: NEW, 1: NEW, 2: OLD}, played=OLD_JOINS)
        self.work(from_us=OLD_JOINS.until_us, until_us=COORDINATOR_DIES_US - 100_000)
        for partition in range(PARTITIONS):
            self.commit(partition, at_us=COORDINATOR_DIES_US + 50_000 + partition, error="disconnected")
        self.note(node=1, what="coordinator_loaded", at_us=COORDINATOR_LOADED_US, partition=7, records=120)
        self.coordinator = 1
        self.metadata(node=1, epoch=6, at_us=COORDINATOR_LOADED_US + 50_000)
        self.metadata(node=2, epoch=5, at_us=COORDINATOR_LOADED_US + 60_000)
        self.work(from_us=COORDINATOR_LOADED_US + 150_000, until_us=4_900_000)
        self.left(OLD, at_us=OLD_LEAVES.from_us)
        self.rebalance(owners={0: NEW, 1: NEW, 2: NEW}, played=OLD_LEAVES)
        self.work(from_us=OLD_LEAVES.until_us, until_us=5_900_000)
        self.mirror()

    def work(self, from_us: int, until_us: int) -> None:
        for at_us in range(from_us + EVERY_US, until_us, EVERY_US):
            for partition, owner in self.owner.items():
                self.poll(owner, partition, at_us + partition * 2_000)
                self.commit(partition, at_us + 20_000 + partition * 2_000)

    # -- membership ---------------------------------------------------------------------------------------------

    def rebalance(self, owners: dict[int, str], played: PlayedRebalance) -> None:
        """Revoke eagerly: all partitions first."""
        from_us, until_us = played.from_us, played.until_us
        for partition, owner in self.owner.items():
            self.member(owner, "revoked", partition, at_us=from_us)
            self.ended(owner, partition, from_us)
        self.generation += 1
        self.owner = dict(owners)
        for process in sorted(set(owners.values())):
            self.member(process, "joined", at_us=until_us, since_us=from_us)
        for partition, owner in owners.items():
            self.member(owner, "assigned", partition, at_us=until_us)
            self.fetched(owner, partition, until_us + 1_000)
            start = self.committed.get(partition, (-1, -1))[0]
            if start < 0:
                self.reset(owner, partition, from_offset=-1, to_offset=0, reason="no_offset", at_us=until_us + 3_000)
            self.position[partition] = max(0, start)
            self.tables["assignments"].append(
                {
                    "process": owner,
                    "topic": TOPIC,
                    "partition": partition,
                    "from_us": until_us,
                    "until_us": 2**62,
                    "from_offset": self.position[partition],
                }
            )

    def left(self, process: str, at_us: int) -> None:
        for partition, owner in list(self.owner.items()):
            if owner == process:
                self.member(owner, "revoked", partition, at_us=at_us - LEAVE_US)
                self.ended(owner, partition, at_us - LEAVE_US)
                del self.owner[partition]
        self.member(process, "left", at_us=at_us)

    def ended(self, process: str, partition: int, at_us: int) -> None:
        for row in self.tables["assignments"]:
            if (row["process"], row["partition"], row["until_us"]) == (process, partition, 2**62):
                row["until_us"] = at_us

    def member(self, process: str, event: str, partition: int = -1, *, at_us: int, since_us: int | None = None) -> None:
        """Add a row of a member, or of one of its partitions. ``since_us`` is when the request began."""
        self.tables["memberships"].append(
            {
                "process": process,
                "group": GROUP,
                "member_id": f"{process}-id",
                "generation": self.generation,
                "event": event,
                "topic": TOPIC if partition >= 0 else "",
                "partition": partition,
                "at_us": at_us,
                "since_us": at_us if since_us is None else since_us,
            }
        )

    # -- reads and commits --------------------------------------------------------------------------------------

    def operation(self, process: str, f: str, at_us: int, kind: str = "ok", node: int = 0) -> int:
        index = self.index[process] = self.index.get(process, -1) + 1
        sent_us = at_us - ROUND_TRIP_US
        row = OperationRow(
            process=process,
            index=index,
            f=f,
            type=kind,
            intended_us=sent_us,
            invoke_us=sent_us,
            complete_us=at_us,
            node=node,
            partitions_sent=1,
            partitions_returned=1 if f == "fetch" else -1,
            request_bytes=100,
            response_bytes=100,
        )
        self.tables["operations"].append(asdict(row))
        return index

    def poll(self, process: str, partition: int, at_us: int) -> None:
        first, end = self.position[partition], self.end(partition, at_us)
        if end <= first:
            return
        index = self.operation(process, "fetch", at_us)
        self.position[partition] = end
        row = PositionRow(
            process=process,
            index=index,
            topic=TOPIC,
            partition=partition,
            fetch_offset=first,
            next_offset=end,
            high_watermark=end,
            log_start_offset=0,
            error=None,
        )
        self.tables["positions"].append(asdict(row))
        for position, run in enumerate(self.records(partition, first, end)):
            self.tables["runs"].append({**run, "process": process, "index": index, "position": position})

    def commit(self, partition: int, at_us: int, error: str | None = None) -> None:
        process = self.owner[partition]
        index = self.operation(process, "offset_commit", at_us, "info" if error else "ok", self.coordinator)
        stored = (self.position[partition], self.epoch if process == NEW else -1)
        self.offsets(process, index, "commit", partition, stored, at_us, error)
        if error is None:
            self.committed[partition] = stored

    def fetched(self, process: str, partition: int, at_us: int) -> None:
        index = self.operation(process, "offset_fetch", at_us, node=self.coordinator)
        offset, epoch = self.committed.get(partition, (-1, -1))
        self.offsets(process, index, "fetched", partition, (offset, epoch if process == NEW else -1), at_us)

    def offsets(
        self,
        process: str,
        index: int,
        kind: str,
        partition: int,
        value: tuple[int, int],
        at_us: int,
        error: str | None = None,
    ) -> None:
        self.tables["commits"].append(
            {
                "process": process,
                "index": index,
                "kind": kind,
                "group": GROUP,
                "generation": self.generation,
                "member_id": f"{process}-id",
                "topic": TOPIC,
                "partition": partition,
                "offset": value[0],
                "leader_epoch": 0,
                "metadata_epoch": value[1],
                "draft": process == NEW,
                "error": error,
                "at_us": at_us,
            }
        )

    def reset(self, process: str, partition: int, from_offset: int, to_offset: int, reason: str, at_us: int) -> None:
        self.tables["resets"].append(
            {
                "process": process,
                "index": self.index[process],
                "topic": TOPIC,
                "partition": partition,
                "from_offset": from_offset,
                "to_offset": to_offset,
                "reason": reason,
                "metadata_epoch": self.epoch,
                "at_us": at_us,
            }
        )

    def metadata(self, node: int, epoch: int, at_us: int) -> None:
        index = self.operation(NEW, "metadata", at_us, node=node)
        accepted, self.epoch = epoch >= self.epoch, max(epoch, self.epoch)
        self.tables["metadata_epochs"].append(
            {
                "process": NEW,
                "index": index,
                "node": node,
                "metadata_epoch": epoch,
                "accepted": accepted,
                "at_us": at_us,
            }
        )
        if accepted:
            self.note(1, "metadata_epoch", at_us - 5_000, epoch=epoch, controller_epoch=2, offset=100 + epoch)
        self.note(node, "update_metadata_applied", at_us - 1_000, epoch=epoch, controller_epoch=2, controller_id=1)

    # -- the log, as the final read shows it --------------------------------------------------------------------

    def end(self, partition: int, at_us: int) -> int:
        """Return the end of what was sent to the partition and acknowledged by then."""
        done = {
            (row["process"], row["index"])
            for row in self.tables["operations"]
            if row["type"] == "ok" and int_of(row, "complete_us") <= at_us
        }
        sent = (
            row
            for row in self.tables["runs"]
            if row["kind"] == "send" and row["partition"] == partition and (row["process"], row["index"]) in done
        )
        return max((int_of(row, "first_offset") + int_of(row, "count") for row in sent), default=0)

    def records(self, partition: int, first: int, end: int) -> list[Row]:
        """Return the runs of records from ``first`` to before ``end``."""
        runs = []
        for row in self.tables["runs"]:
            if row["process"] != "final" or row["partition"] != partition:
                continue
            low = max(first, int_of(row, "first_offset"))
            high = min(end, int_of(row, "first_offset") + int_of(row, "count"))
            if low < high:
                shift = low - int_of(row, "first_offset")
                runs.append(
                    {
                        **row,
                        "first_offset": low,
                        "count": high - low,
                        "first_sequence": int_of(row, "first_sequence") + shift,
                    }
                )
        return runs

    def mirror(self) -> None:
        for partition in range(PARTITIONS):
            at = 0
            for at_us in range(500_000, 6_400_000, EVERY_US):
                at = self.copy(partition, at, self.end(partition, at_us), at, at_us + 40_000)
            self.read_target(partition, at)

    def copy(self, partition: int, first: int, end: int, target: int, at_us: int) -> int:
        if first < end:
            index = self.operation(MIRROR, "mirror_produce", at_us, node=-1)
            for run in self.records(partition, first, end):
                self.tables["copies"].append(
                    {
                        "process": MIRROR,
                        "index": index,
                        "topic": TOPIC,
                        "partition": partition,
                        "source_offset": run["first_offset"],
                        "count": run["count"],
                        "target_offset": target,
                        "writer": run["writer"],
                        "first_sequence": run["first_sequence"],
                        "at_us": at_us,
                    }
                )
                target += int_of(run, "count")
        return max(first, end)

    def read_target(self, partition: int, end: int) -> None:
        """Add the mirror's topic as it was read at the end. Its offsets are those of the source."""
        mark = {
            "topic": TOPIC,
            "partition": partition,
            "first_offset": end,
            "count": 0,
            "writer": "",
            "first_sequence": -1,
        }
        names = ("topic", "partition", "first_offset", "count", "writer", "first_sequence")
        for run in self.records(partition, 0, end):
            self.tables["target_runs"].append({name: run[name] for name in names})
        self.tables["target_runs"].append(mark)

    def note(self, node: int, what: str, at_us: int, **detail: object) -> None:
        self.seq += 1
        row = TraceRow(
            node=node, incarnation=0, seq=self.seq, at_us=at_us, what=what, detail=json.dumps(detail, sort_keys=True)
        )
        self.tables["trace"].append(asdict(row))


def add_groups(tables: Tables) -> None:
    Groups(tables).play()
