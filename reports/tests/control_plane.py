"""A legal control plane beside the log's history: three nodes, an admin, a reader, a failover, a resumed download."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from reports.rows import OperationRow, TraceRow

TABLES = dict[str, list[dict[str, object]]]
ADMIN, READER, DESCRIBER = "admin-0", "metadata-reader-0", "final-describer"
TOPICS, PARTITIONS, NODES = 2, 3, 3
SIZE_BYTES = 3_500
FIRST = 1_000_000_000_000
SET = "made.admin-0.{}"


def set_topics(number: int) -> list[str]:
    return [f"{SET.format(number)}.{index}of{TOPICS}.p{PARTITIONS}" for index in range(TOPICS)]


@dataclass
class ControlPlane:
    """``visible``: sets as all nodes know them, with the value of their config."""

    tables: TABLES
    seq: dict[tuple[int, int], int] = field(default_factory=dict)
    index: dict[str, int] = field(default_factory=dict)
    visible: dict[int, int] = field(default_factory=dict)
    shown: dict[int, dict[int, int]] = field(default_factory=dict)

    def play(self) -> None:
        """Set 1 exists; 2 is deleted; 3 is configured twice; 4 was created by the first of two attempts; 5 may or may
        not be there, and is; 6 was never requested over the wire."""
        self.led(0, 0, 1, 200_000)
        self.change("create", 1, 500_000)
        self.change("create", 2, 900_000)
        self.change("create", 3, 1_200_000)
        self.read(0, 1_300_000)
        self.read(2, 1_350_000)
        self.change("configure", 3, 1_500_000, value=FIRST)
        self.change("configure", 3, 1_800_000, value=FIRST + 1)
        self.change("delete", 2, 2_500_000)
        self.read(0, 2_600_000)
        self.download()
        self.led(1, 0, 2, 3_400_000)
        self.change("create", 4, 3_450_000, until_us=4_000_000, attempts=2, error="TOPIC_ALREADY_EXISTS")
        self.change("create", 5, 4_500_000, kind="info", error="REQUEST_TIMED_OUT")
        self.change("create", 6, 4_700_000, kind="fail", attempts=0)
        self.read(1, 4_800_000)
        self.read(2, 4_900_000)
        self.commits()
        self.describe(6_500_000)

    # -- clients ------------------------------------------------------------------------------------------------

    def operation(self, process: str, f: str, invoke_us: int, complete_us: int, kind: str = "ok", node: int = 0) -> int:
        index = self.index[process] = self.index.get(process, -1) + 1
        row = OperationRow(
            process, index, f, kind, invoke_us, invoke_us, complete_us, node, request_bytes=100, response_bytes=100
        )
        self.tables["operations"].append(asdict(row))
        return index

    def change(
        self,
        change: str,
        number: int,
        at_us: int,
        *,
        until_us: int = 0,
        kind: str = "ok",
        value: int = -1,
        attempts: int = 1,
        error: str | None = None,
    ) -> None:
        f = {"create": "create_topics", "delete": "delete_topics", "configure": "alter_configs"}[change]
        index = self.operation(ADMIN, f, at_us, until_us or at_us + 20_000, kind)
        for topic in set_topics(number):
            self.tables["changes"].append(
                {
                    "process": ADMIN,
                    "index": index,
                    "change": change,
                    "topic": topic,
                    "topic_set": SET.format(number),
                    "topics_wanted": TOPICS,
                    "partitions_wanted": PARTITIONS,
                    "value": value,
                    "type": kind,
                    "attempts": attempts,
                    "error": error,
                }
            )
        if attempts and change == "delete":
            del self.visible[number]
        elif attempts:
            self.visible[number] = value

    def read(self, node: int, at_us: int) -> None:
        index = self.operation(READER, "metadata_read", at_us, at_us + 3_000, node=node)
        before, now = self.shown.get(node, {}), dict(self.visible)
        for number in now:
            if number not in before:
                self.seen(READER, index, node, number, True)
        for number in before:
            if number not in now:
                self.seen(READER, index, node, number, False)
        self.shown[node] = now

    def describe(self, at_us: int) -> None:
        for node in range(NODES):
            index = self.operation(DESCRIBER, "final_describe", at_us + node, at_us + node + 4_000, node=node)
            for number, value in self.visible.items():
                self.seen(DESCRIBER, index, node, number, True, value=value, final=True)

    def seen(
        self, process: str, index: int, node: int, number: int, present: bool, *, value: int = -1, final: bool = False
    ) -> None:
        for place, topic in enumerate(set_topics(number)):
            self.tables["metadata_reads"].append(
                {
                    "process": process,
                    "index": index,
                    "node": node,
                    "topic": topic,
                    "topic_set": SET.format(number),
                    "topics_wanted": TOPICS,
                    "partitions_wanted": PARTITIONS,
                    "partitions_seen": PARTITIONS if present else 0,
                    "present": present,
                    "topic_id": f"{number:030x}{place:02x}" if present else "",
                    "value": value,
                    "final": final,
                }
            )

    # -- nodes --------------------------------------------------------------------------------------------------

    def note(self, node: int, incarnation: int, at_us: int, what: str, **fields: int | str) -> None:
        seq = self.seq[node, incarnation] = self.seq.get((node, incarnation), 10**6) + 1
        row = TraceRow(node, incarnation, seq, at_us, what, detail=json.dumps(fields, sort_keys=True))
        self.tables["trace"].append(asdict(row))

    def led(self, node: int, incarnation: int, epoch: int, at_us: int) -> None:
        self.note(node, incarnation, at_us, "leader_elected", epoch=epoch, start_offset=epoch * 10)
        self.note(node, incarnation, at_us + 50_000, "controller_activated", epoch=epoch, offset=epoch * 10)

    def commits(self) -> None:
        """A transaction that ends, one that the second leader aborts, single batches; node 2 joins by a snapshot."""
        kinds = ["begin", "batch", "end", "single", "begin", "batch", "abort", "begin", "batch", "end", "single"]
        for node, first in ((0, 0), (1, 0), (2, 3)):
            for place, kind in enumerate(kinds[first:], first):
                at_us = 700_000 + place * 400_000 + node
                self.note(node, 0, at_us, "metadata_committed", kind=kind, number=1, of=1, offset=100 + place)
            for offset in (102, 103, 109, 110):
                if offset >= 100 + first:
                    self.note(
                        node,
                        0,
                        700_000 + (offset - 100) * 400_000 + node,
                        "metadata_image",
                        offset=offset,
                        epoch=1,
                        topics=1,
                        partitions=3,
                        digest=f"{offset:016x}",
                    )

    def download(self) -> None:
        """Node 2 is killed in the middle and goes on at its durable position."""
        snapshot = {"leader": 0, "end_offset": 102, "epoch": 1, "size": SIZE_BYTES}
        self.note(2, 0, 600_000, "download_started", position=0, **snapshot)
        self.chunks(2, 0, 610_000, [0, 1_000])
        self.note(2, 1, 1_600_000, "download_started", position=1_000, **snapshot)
        self.chunks(2, 1, 1_610_000, [1_000, 2_000, 3_000])
        self.note(2, 1, 1_700_000, "download_finished", bytes=SIZE_BYTES)

    def chunks(self, node: int, incarnation: int, at_us: int, positions: Sequence[int]) -> None:
        for place, position in enumerate(positions):
            size = min(1_000, SIZE_BYTES - position)
            self.note(
                node,
                incarnation,
                at_us + place * 1_000,
                "download_chunk",
                position=position,
                bytes=size,
                size=SIZE_BYTES,
            )


def add_control_plane(tables: TABLES) -> None:
    ControlPlane(tables).play()
