"""Loads a snapshot from disk into an image, in slices."""

from collections.abc import Generator

from reference_broker.metadata.delta import MetadataDelta, MetadataFault
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.record_codec import decode
from reference_broker.metadata.replay import replay
from reference_broker.ports.disk import Disk
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.snapshots.format import SnapshotDamaged, header_timestamp_ms, read_batches, snapshot_path
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.records.batch import InvalidRecords
from reference_broker.records.reader import read_records

RECORDS_PER_SLICE = 200
"""One slice decodes and replays this many records, in some 3 ms."""


def load_snapshot(disk: Disk, snapshot: OffsetAndEpoch) -> Generator[None, None, MetadataImage]:
    """Returns the image as of the record before the snapshot's end offset. Raises StartRefused for a damaged snapshot
    and for one with transaction markers (T-3). Nothing of such a file is used."""
    path = snapshot_path(snapshot)
    try:
        return (yield from _loaded(disk, path, snapshot))
    except (SnapshotDamaged, InvalidRecords, MetadataFault) as fault:
        raise StartRefused(
            f"The snapshot {path} cannot be loaded ({fault}): restore it from a copy, or use an empty directory and "
            "let this node fetch the metadata from the others."
        ) from fault


def _loaded(disk: Disk, path: str, snapshot: OffsetAndEpoch) -> Generator[None, None, MetadataImage]:
    delta = MetadataDelta(EMPTY_IMAGE)
    timestamp_ms = -1
    taken = 0
    for batch in read_batches(disk, path, snapshot):
        if batch.header.is_control:
            timestamp_ms = header_timestamp_ms(batch.data) if timestamp_ms < 0 else timestamp_ms
            continue
        for record in read_records(batch.data):
            # ``replay`` knows no markers, so a marker is a fault, as is any record that cannot follow.
            replay(delta, decode(record.value or b""))
            taken += 1
            if taken % RECORDS_PER_SLICE == 0:
                yield
    return delta.build(Provenance(snapshot.offset - 1, snapshot.epoch, timestamp_ms))
