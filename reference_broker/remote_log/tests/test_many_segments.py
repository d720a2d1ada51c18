"""With a thousand remote segments no event walks all of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.producer_state import encode_snapshot
from reference_broker.log.tests.log_world import NOW, appended, batch_of, opened
from reference_broker.log.tests.tiered_world import TIERED, synced
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import REMOTE_OBJECTS_PER_SLICE, REMOTE_SEGMENTS_PER_SLICE
from reference_broker.remote_log.expiring import expirer
from reference_broker.remote_log.metadata import remote_log_metadata_cache
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.metadata.tests.remote_events import FINISHED, copy_of, step
from reference_broker.remote_log.objects import keys_of, name_of
from reference_broker.remote_log.tests.tier_world import TOPIC_ID, Tier, TierNode
from reference_broker.replication.partitions import Partition

SEGMENTS = 1000
END = 10 * SEGMENTS
PARTITIONS = 3
KEPT = replace(TIERED, local_retention_bytes=-1)


class Looks:
    """``most``: maximum number of calls of each in one event."""

    def __init__(self, patch: pytest.MonkeyPatch, node: TierNode) -> None:
        self.counted = dict.fromkeys(("shares", "owners", "names"), 0)
        self.most, self.all = dict(self.counted), dict(self.counted)
        patch.setattr(expirer.Shares, "_shared", self._counting("shares", expirer.Shares._shared))
        patch.setattr(RemoteLogMetadataCache, "_owned_at", self._counting("owners", RemoteLogMetadataCache._owned_at))
        patch.setattr(expirer, "name_of", self._counting("names", name_of))
        deliver = node.ports.deliver

        def delivered(callback: Callable[[], None]) -> None:
            self.counted = dict.fromkeys(self.counted, 0)
            deliver(callback)

        node.ports.deliver = delivered  # type: ignore[method-assign]

    def _counting(self, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.counted[name] += 1
            self.all[name] += 1
            self.most[name] = max(self.most[name], self.counted[name])
            return inner(*args)

        return call


def segments_of(partition: int) -> list[RemoteLogSegmentMetadata]:
    return [
        copy_of(number + 1, 10 * number, 10 * number + 9, partition=partition, topic_id=TOPIC_ID, attempt=number + 1)
        for number in range(SEGMENTS)
    ]


def tiered() -> tuple[Tier, TierNode]:
    """Each partition has its segments and their objects in the tier, listed by leaders of epoch 1 and before."""
    tier = Tier()
    node = TierNode(tier, expires=True)
    for index in range(PARTITIONS):
        known = tier.metadata.partitions[TOPIC_ID, index] = RemoteLogMetadataCache()
        for segment in segments_of(index):
            assert not known.apply(segment)
            assert not known.apply(step(segment, FINISHED))
            tier.store_memory.objects.update(dict.fromkeys(keys_of(replace(segment, topic="events")), b""))
    return tier, node


def led(node: TierNode, *, is_here: bool) -> list[Partition]:
    """Each log starts after its remote segments, or has all of their records, too."""
    partitions = []
    for index in range(PARTITIONS):
        log = opened(MemoryDisk(), replace(KEPT, segment_bytes=250))
        if is_here:
            for _ in range(SEGMENTS):
                log.append(NOW, batch_of(10), 0)
            appended(log, batch_of(1))
            synced(log)
        else:
            log.start_from_remote(NOW, END, 0, [(0, 0)], encode_snapshot(log.producers), log.producers)
        partitions.append(node.lead(log, index))
    return partitions


@pytest.mark.thorough
def test_walks_over_thousand_segments_take_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, node = tiered()
    looks = Looks(monkeypatch, node)
    partitions = led(node, is_here=False)
    tier.pass_ms(5_000)
    assert looks.all["shares"] >= PARTITIONS * SEGMENTS
    assert looks.all["names"] >= PARTITIONS * SEGMENTS
    assert looks.most["shares"] <= 2 * REMOTE_SEGMENTS_PER_SLICE
    assert looks.most["names"] <= REMOTE_OBJECTS_PER_SLICE
    assert looks.most["owners"] <= 10
    assert all(len(tier.listed(partition)) == SEGMENTS for partition in partitions)


@pytest.mark.thorough
def test_new_leader_determines_copied_end_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, node = tiered()
    looks = Looks(monkeypatch, node)
    partitions = led(node, is_here=True)
    tier.pass_ms(5_000)
    assert [partition.log.copied_end_offset for partition in partitions] == [END] * PARTITIONS
    assert looks.all["owners"] >= PARTITIONS * SEGMENTS
    assert looks.most["owners"] <= 2 * remote_log_metadata_cache.MAX_SEGMENTS_EXAMINED + 10


@pytest.mark.thorough
def test_bytes_retention_of_thousand_segments_removes_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, node = tiered()
    looks = Looks(monkeypatch, node)
    (first, *_) = led(node, is_here=False)
    listed = tier.listed(first)
    first.log.config = replace(KEPT, retention_bytes=sum(each.size_bytes for each in listed[10:]))
    tier.pass_ms(10_000)
    assert tier.listed(first) == listed[10:]
    assert first.log.log_start_offset == 100
    assert looks.most["shares"] <= 2 * REMOTE_SEGMENTS_PER_SLICE
