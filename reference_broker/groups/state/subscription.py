"""The topics in a consumer's metadata (ConsumerProtocolSubscription.json).

The metadata is read as version 0, since every later version begins in the same way.
"""

from collections.abc import Iterable


def subscribed_topics(metadatas: Iterable[bytes]) -> dict[str, None] | None:
    """Returns all topics, each once, in the order of first mention. Returns None if the metadata of one member cannot
    be read."""
    found: dict[str, None] = {}
    for metadata in metadatas:
        topics = _topics_of(metadata)
        if topics is None:
            return None
        found.update(dict.fromkeys(topics))
    return found


def _topics_of(metadata: bytes) -> list[str] | None:
    """The layout is the version (int16), then an array of topic names whose lengths are not compact."""
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
    """Reads a big-endian number. Where the bytes end before it, the answer is -1, which no caller accepts."""
    if at + size > len(data):
        return -1
    return int.from_bytes(data[at : at + size], "big", signed=True)
