"""Legal replication beside the log's history: three nodes lead a partition each, one is killed and comes back."""

import json
from dataclasses import asdict

from reports.rows import TraceRow

Tables = dict[str, list[dict[str, object]]]
TOPIC = "orders"
FOLLOWER = "node-1"
FULL_BYTES, INCREMENTAL_BYTES = 400, 90
FULL_US, INCREMENTAL_US = 900, 150
LONG_AFTER_US = 3_600_000_000
_FIRST_SEQ = 1_000_000


class Replicas:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.seq = _FIRST_SEQ

    def play(self) -> None:
        for partition in range(3):
            self.leads(partition, partition, 0, "0,1,2", 100_000 + partition)
        self.leads(1, 0, 1, "1,2", 3_300_000)
        for node in (1, 2):
            self.changes(node, node, "1,2", 3_310_000 + node)
        for partition, node in ((0, 1), (1, 1), (2, 2)):
            self.changes(node, partition, "1,2,0", 4_400_000 + partition)
        self.costs()

    def leads(self, node: int, partition: int, epoch: int, isr: str, at_us: int) -> None:
        self.note(node, "leads", at_us, leader_epoch=epoch, isr=isr, partition=f"{TOPIC}-{partition}")

    def changes(self, node: int, partition: int, isr: str, at_us: int) -> None:
        self.note(node, "isr_changed", at_us, isr=isr, partition=f"{TOPIC}-{partition}", partition_epoch=3)

    def note(self, node: int, what: str, at_us: int, **detail: object) -> None:
        self.seq += 1
        row = TraceRow(node, 0, self.seq, at_us, what, detail=json.dumps(detail, sort_keys=True))
        self.tables["trace"].append(asdict(row))

    def costs(self) -> None:
        """The cost of each fetch with a response: a full one costs more than an incremental one, a follower's is alike.
        Not of the load are the final read's, and a follower's while the nodes end."""
        for row in self.tables["operations"]:
            if row["f"] == "fetch" and row["type"] == "ok":
                full, sent = int(str(row["session_epoch"])) <= 0, int(str(row["partitions_returned"]))
                self.cost(str(row["process"]), full, int(str(row["complete_us"])), sent)
        for number in range(20):
            self.cost(FOLLOWER, number == 0, 200_000 + number * 100_000, number % 3)
        self.cost("final-reader", True, 1_000_000, 3)
        self.cost(FOLLOWER, True, LONG_AFTER_US, 3)

    def cost(self, client: str, full: bool, at_us: int, sent: int) -> None:
        self.tables["fetch_costs"].append(
            {
                "at_us": at_us,
                "node": 0,
                "client_id": client,
                "revision": "final",
                "full": full,
                "request_bytes": FULL_BYTES if full else INCREMENTAL_BYTES,
                "response_bytes": 60 + 1_000 * sent,
                "named": 3 if full else 0,
                "sent": sent,
                "record_bytes": 900 * sent,
                "service_us": FULL_US if full else INCREMENTAL_US,
            }
        )


def add_replicas(tables: Tables) -> None:
    Replicas(tables).play()
