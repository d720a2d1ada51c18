import json
import re
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

MOST_BEGUN = 3
"""No clause gives this number. S-15 keeps a superseded snapshot as long as its download advances, and S-10 lets a
leader name a newer one after each error. So two such changes are allowed for, and a download that never ends is red.
The newer ones may be larger, so what they may cost is their own size."""


DAMAGE = re.compile(r"\.checkpoint\.part at byte \d+")
"""The words by which a node tells what is wrong inside a file that it has fetched."""


class _Source(NamedTuple):
    leader: int
    end_offset: int
    epoch: int


@dataclass(slots=True)
class _Spent:
    """What was fetched of snapshots of together ``size`` bytes (0 while that is not known), in how many ``starts``, and
    at most ``chunk`` bytes at once."""

    size: int = 0
    received: int = 0
    starts: int = 0
    chunk: int = 0

    def receive(self, size: int) -> None:
        self.received += size
        self.chunk = max(self.chunk, size)


@dataclass(slots=True)
class _Transfer:
    """The transfer from one source. ``held`` counts bytes in the partial file, as the notes say."""

    source: _Source
    held: int = 0
    spent: _Spent = field(default_factory=_Spent)


@dataclass(slots=True)
class _Catching:
    """A node between its first request for a snapshot and its first whole snapshot.

    ``spent`` and ``begun`` begin anew with each leader. Its size is that of the first ``MOST_BEGUN`` transfers that
    brought bytes, and ``begun`` counts those.
    """

    transfer: _Transfer | None = None
    spent: _Spent = field(default_factory=_Spent)
    begun: int = 0


class SnapshotTransfer(Check):
    """snapshot-transfer-bounded: a download resumes where it stood, holds bytes of one snapshot of one leader, and
    ends.

    The check reads the downloading node's own notes. From one leader a node fetches at most a snapshot's size, plus one
    chunk for each time that it began again (S-11). Until it has a whole snapshot it fetches from one leader at most as
    many bytes as the first three have that it began, plus a chunk for each beginning, whatever appears meanwhile
    (S-15).
    """

    guarantee = "snapshot-transfer-bounded"
    rows: ClassVar[tuple[str, ...]] = ("download_started", "download_chunk", "download_finished", "download_discarded")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._nodes: dict[int, _Catching] = {}

    def trace(self, row: TraceRow) -> None:
        fields = json.loads(row.detail)
        node = self._nodes.setdefault(row.node, _Catching())
        if row.what == "download_started":
            self._started(row, node, fields)
        elif row.what == "download_chunk":
            self._received(row, node, fields)
        elif row.what == "download_finished":
            del self._nodes[row.node]
        else:
            self._discarded(row, node, str(fields["why"]))

    def _started(self, row: TraceRow, node: _Catching, fields: dict[str, int]) -> None:
        source, position = _Source(fields["leader"], fields["end_offset"], fields["epoch"]), fields["position"]
        transfer = node.transfer
        if transfer is None or transfer.source != source:
            if position:
                held = "nothing" if transfer is None else f"{transfer.held} bytes of {transfer.source}"
                self.violated(row.at_us, f"{_name(row)} asks for {source} from byte {position} and holds {held}")
            if transfer is not None and transfer.source.leader != source.leader:
                node.spent, node.begun = _Spent(), 0
            transfer = node.transfer = _Transfer(source)
        elif position > transfer.held:
            self.violated(
                row.at_us, f"{_name(row)} asks for {source} from byte {position} and holds {transfer.held} bytes"
            )
        transfer.held = position
        transfer.spent.starts += 1
        node.spent.starts += 1

    def _received(self, row: TraceRow, node: _Catching, fields: dict[str, int]) -> None:
        self.looked_at += 1
        transfer, position, size = node.transfer, fields["position"], fields["bytes"]
        if transfer is None:
            self.violated(row.at_us, f"{_name(row)} got {size} bytes at {position} that it did not ask for")
            return
        if position != transfer.held:
            self.violated(
                row.at_us, f"{_name(row)} holds {transfer.held} bytes of {transfer.source} and took those at {position}"
            )
        transfer.held = position + size
        if not transfer.spent.received and node.begun < MOST_BEGUN:
            node.begun += 1
            node.spent.size += max(fields["size"], 0)  # KIP-630's earlier layout tells no size: -1.
        transfer.spent.size = max(transfer.spent.size, fields["size"])
        transfer.spent.receive(size)
        node.spent.receive(size)
        self._bounded(row, f"of {transfer.source}", transfer.spent)
        self._bounded(row, "until it has one", node.spent)

    def _discarded(self, row: TraceRow, node: _Catching, why: str) -> None:
        if DAMAGE.search(why):  # S-10: a file with bytes of one snapshot of one leader is whole.
            self.violated(row.at_us, f"{_name(row)} put together a damaged snapshot: {why}")
        if node.transfer is not None:
            node.transfer.held = 0

    def _bounded(self, row: TraceRow, what: str, spent: _Spent) -> None:
        most = spent.size + spent.starts * spent.chunk
        if spent.size and spent.received > most:
            story = f"{_name(row)} fetched {spent.received} bytes {what}, in {spent.starts} starts; at most {most}"
            self.violated(row.at_us, story)


def _name(row: TraceRow) -> str:
    return f"node-{row.node} (incarnation {row.incarnation})"
