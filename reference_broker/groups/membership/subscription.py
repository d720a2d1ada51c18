"""The topics in a consumer's metadata (ConsumerProtocolSubscription.json), read as version 0: all versions begin so."""

from collections.abc import Iterable


def subscribed_topics(metadatas: Iterable[bytes]) -> tuple[str, ...] | None:
    """All topics, each once, in the order of first mention; None if one member's metadata cannot be read."""
    found: dict[str, None] = {}
    for metadata in metadatas:
        topics = _topics_of(metadata)
        if topics is None:
            return None
        found.update(dict.fromkeys(topics))
    return tuple(found)


def _topics_of(metadata: bytes) -> list[str] | None:
    """Version (int16), then an array of topic names with legacy lengths."""
    if len(metadata) < 6 or _int(metadata, 0, 2) < 0:
        return None
    count, at = _int(metadata, 2, 4), 6
    if not 0 <= count <= len(metadata):
        return None
    topics: list[str] = []
    for _ in range(count):
        length = _int(metadata, at, 2)
        at += 2
        if length < 0 or at + length > len(metadata):
            return None
        try:
            topics.append(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return topics


def _int(data: bytes, at: int, size: int) -> int:
    """Big-endian; -1, which no caller accepts, where the bytes end before."""
    if at + size > len(data):
        return -1
    return int.from_bytes(data[at : at + size], "big", signed=True)
