"""Metadata of remote segments without a topic, for tests of its users."""

from collections.abc import Callable

from reference_broker.ports.node_ports import Ports, later
from reference_broker.remote_log.metadata.events import RemoteLogEvent, decode, encode
from reference_broker.remote_log.metadata.remote_log_metadata_cache import Applied, RemoteLogMetadataCache
from reference_broker.remote_log.metadata.topic import numbered
from reference_broker.wire.errors import ErrorCode


class MemoryMetadata:
    """Implements ``RemoteLogMetadata``. An event is applied in the next event, or waits for ``release`` if ``holds`` is
    set. ``refusals`` are errors for the next writes, which do not happen."""

    def __init__(self, ports: Ports) -> None:
        self.partitions: dict[tuple[bytes, int], RemoteLogMetadataCache] = {}
        self.written: list[RemoteLogEvent] = []
        """Events that were applied, in order."""
        self.not_ready: set[tuple[bytes, int]] = set()
        self.refusals: list[ErrorCode] = []
        self.holds = False
        self._held: list[Callable[[], None]] = []
        self._watches: dict[tuple[bytes, int], int] = {}
        self._ports = ports

    def watch(self, topic_id: bytes, topic: str, partition: int) -> None:
        assert topic
        key = topic_id, partition
        self._watches[key] = self._watches.get(key, 0) + 1
        self.partitions.setdefault(key, RemoteLogMetadataCache())

    def unwatch(self, topic_id: bytes, partition: int) -> None:
        """Stop watching. The events stay in the topic, so they are known again with the next ``watch``."""
        key = topic_id, partition
        if key in self._watches:
            self._watches[key] -= 1
            if not self._watches[key]:
                del self._watches[key]

    def is_ready(self, topic_id: bytes, partition: int) -> bool:
        return (topic_id, partition) in self._watches and (topic_id, partition) not in self.not_ready

    def of(self, topic_id: bytes, partition: int) -> RemoteLogMetadataCache:
        is_watched = (topic_id, partition) in self._watches
        return self.partitions[topic_id, partition] if is_watched else RemoteLogMetadataCache()

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        key = event.topic_id, event.partition

        def take() -> None:
            if self.refusals:
                done(self.refusals.pop(0))
            elif key not in self._watches:
                done(ErrorCode.not_leader_or_follower)
            else:
                self.written.append(written)
                done(self.partitions[key].apply(written))

        written = decode(encode(numbered(event, self.of(*key))))
        if self.holds:
            self._held.append(take)
        else:
            later(self._ports, 0, take)

    def release(self) -> None:
        """Apply the held events, each in an event of its own."""
        held, self._held = self._held, []
        for take in held:
            later(self._ports, 0, take)

    def image_changed(self) -> None:
        """Do nothing: there is no topic."""
