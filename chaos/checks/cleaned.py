"""Says what is wrong in a part of a compacted replica that its cleaner, or that of its leader, has worked on."""

from dataclasses import dataclass, field

from chaos.checks.compacted import Compacted


@dataclass(slots=True)
class Left:
    """What a replica holds in [``begin``, ``end``): the offsets of records and of markers, and its batches as last
    offset by base offset. Its own cleaner has worked below ``cleaned_offset``."""

    begin: int
    end: int
    cleaned_offset: int
    records: dict[int, None] = field(default_factory=dict)
    markers: dict[int, None] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)


def wrongly_cleaned(at_us: int, compacted: Compacted, left: Left) -> str:
    """Returns what the replica lacks and must hold, or holds and must lack; empty if nothing."""
    return _records(at_us, compacted, left) or _markers(at_us, compacted, left) or _last_batches(compacted, left)


def _records(at_us: int, compacted: Compacted, left: Left) -> str:
    kept: dict[bytes, int] = {}
    for offset in compacted.between(left.begin, left.end):
        if offset not in left.records:
            if not compacted.may_lack(offset, at_us):
                return f"lacks the record at offset {offset}, {_why_it_stays(compacted, offset)}"
        elif offset < left.cleaned_offset:
            if offset in compacted.aborted:
                return f"is cleaned up to {left.cleaned_offset}, and has offset {offset}, which was aborted"
            key = compacted.records[offset].key
            older = offset if key is None or not compacted.counts(offset) else kept.setdefault(key, offset)
            if older != offset:
                return f"is cleaned up to {left.cleaned_offset}, and has offset {older}, which {offset} supersedes"
    return ""


def _why_it_stays(compacted: Compacted, offset: int) -> str:
    newer, end = compacted.next_of_key(offset), compacted.cleanable_end
    if newer is not None:
        return f"which only that at {newer} supersedes; cleaners may work below {end}"
    return f"which is the newest of its key; cleaners may work below {end}"


def _markers(at_us: int, compacted: Compacted, left: Left) -> str:
    for offset in compacted.markers_between(left.begin, left.end):
        if offset in left.markers:
            continue
        if not compacted.may_lack_marker(offset, at_us):
            return f"lacks the marker at offset {offset}, which stays for delete.retention.ms"
        # Kafka: a marker stays while a batch of its transaction is left, even an empty one.
        batch = next((each for each in compacted.markers[offset].batches if each in left.batches), None)
        if batch is not None:
            return f"lacks the marker at offset {offset}, although the batch at {batch} of its transaction is left"
    return ""


def _last_batches(compacted: Compacted, left: Left) -> str:
    """P-1: the last batch of each producer stays, without records if necessary."""
    last = dict.fromkeys(left.batches.values())
    for producer_id, (_, offset) in compacted.last_batches.items():
        if left.begin <= offset < left.end and offset not in last:
            return f"lacks the batch that ends at offset {offset}, the last one of producer {producer_id}"
    return ""
