"""The number that a copy of a segment gets when its first event is written."""

from dataclasses import replace

from reference_broker.remote_log.metadata.events import RemoteLogEvent, RemoteSegment
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments


def numbered(event: RemoteLogEvent, known: PartitionSegments, metadata_offset: int = 0) -> RemoteLogEvent:
    """Returns the event as it is written: a segment with the number that follows the last copy that is known, and with
    the offset up to which the cluster's metadata is known here."""
    if not isinstance(event, RemoteSegment):
        return event
    is_newer = event.uploader_epoch > known.newest_epoch
    return replace(event, attempt=1 if is_newer else known.last_attempt + 1, metadata_offset=metadata_offset)
