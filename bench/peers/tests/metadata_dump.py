"""Output of Apache Kafka's kafka-dump-log for a metadata log or its snapshot."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.tests.java_tools import dump_segments

COMPLAINTS = re.compile(
    "isvalid: false|Mismatches|Non-consecutive|Found timestamp mismatch|Found out of order|Could not|Error|Exception"
)
"""The tool's complaints about a damaged file, outside of records' payloads."""

_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) .* partitionLeaderEpoch: (-?\d+) .* isControl: (\w+) .* size: (\d+) "
    r".* crc: (\d+)",
    re.M,
)
_RECORD = re.compile(r'^\| offset: (\d+) .* payload: (\{"type".*\})$', re.M)
_CONTROL = re.compile(r"^\| offset: (\d+) .* (LeaderChange|SnapshotHeader|SnapshotFooter):? (\{.*\})$", re.M)
_SNAPSHOT_ID = re.compile(r"^Snapshot end offset: (\d+), epoch: (\d+)$", re.M)


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    base_offset: int
    last_offset: int
    epoch: int
    is_control: bool
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """``kind``: Kafka's name, such as TOPIC_RECORD; ``data``: its fields as the tool's JSON has them."""

    offset: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dump:
    """``controls``: offset and name of each control record; ``snapshot_ids``: (end offset, epoch) of each file."""

    batches: tuple[DumpedBatch, ...]
    records: tuple[DumpedRecord, ...]
    controls: tuple[tuple[int, str], ...]
    snapshot_ids: tuple[tuple[int, int], ...]
    complaints: tuple[str, ...]

    def kinds(self) -> list[str]:
        return [record.kind for record in self.records]


def dump_metadata(paths: Sequence[Path]) -> Dump:
    """Raise as ``java_tools.run_tool`` does."""
    shown = dump_segments(paths, "--cluster-metadata-decoder")
    return Dump(
        tuple(
            DumpedBatch(int(base), int(last), int(epoch), control == "true", int(size), int(crc))
            for base, last, epoch, control, size, crc in _BATCH.findall(shown)
        ),
        tuple(_record(int(offset), json.loads(payload)) for offset, payload in _RECORD.findall(shown)),
        tuple((int(offset), name) for offset, name, _ in _CONTROL.findall(shown)),
        tuple((int(end), int(epoch)) for end, epoch in _SNAPSHOT_ID.findall(shown)),
        tuple(line for line in shown.splitlines() if COMPLAINTS.search(re.sub("payload: .*", "", line))),
    )


def _record(offset: int, payload: dict[str, Any]) -> DumpedRecord:
    return DumpedRecord(offset, payload["type"], payload["data"])
