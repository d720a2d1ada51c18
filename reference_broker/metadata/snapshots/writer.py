"""Writes one image as a snapshot, in slices, under a temporary name that no reader takes for a snapshot."""

from collections.abc import Iterator
from itertools import islice

from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.record_codec import encode
from reference_broker.metadata.snapshots.records_of import records_of
from reference_broker.ports.disk import Disk
from reference_broker.quorum.snapshots.format import data_batch, footer_batch, header_batch, made_path
from reference_broker.quorum.values import OffsetAndEpoch

RECORDS_PER_BATCH = 150
"""One slice encodes and writes this many records, in some 3 ms."""


def snapshot_id(image: MetadataImage) -> OffsetAndEpoch:
    """The ID of the snapshot that holds exactly this image."""
    return OffsetAndEpoch(image.provenance.offset + 1, image.provenance.epoch)


def write_snapshot(disk: Disk, image: MetadataImage) -> Iterator[None]:
    """Writes one batch at each step, and the footer at the end. Then ``made_path`` is complete, but not durable.

    The image never changes, so records that are committed meanwhile do not get into it. Raises DiskError; the caller
    must then delete the file.
    """
    snapshot = snapshot_id(image)
    path = made_path(snapshot)
    timestamp_ms = image.provenance.timestamp_ms
    disk.delete(path)
    disk.append(path, [header_batch(snapshot, timestamp_ms)])
    next_offset = 1
    records = records_of(image)
    while values := tuple(encode(record) for record in islice(records, RECORDS_PER_BATCH)):
        disk.append(path, [data_batch(snapshot, next_offset, timestamp_ms, values)])
        next_offset += len(values)
        yield
    disk.append(path, [footer_batch(snapshot, next_offset, timestamp_ms)])
