"""The gauges of remote segments, and of those to be removed."""

import pytest

from reference_broker.remote_log.expiring.tests.test_expirer import KEPT, led


@pytest.mark.clause(
    "RemoteLogManagerTest.testRemoteDeleteLagsOnRetentionBreachedSegments", "RemoteLogManagerTest.testRemoteSizeData"
)
def test_gauges_count_remote_and_expired_segments() -> None:
    tier, node, log = led(KEPT)
    partition = node.lead(log)
    tier.pass_ms(5_000)
    names = ("RemoteLogMetadataCount", "RemoteLogSizeBytes", "RemoteDeleteLagSegments", "RemoteDeleteLagBytes")

    def counted() -> tuple[int, ...]:
        return tuple(node.value(name) for name in names)

    tier.pass_ms(1_000)
    listed = tier.listed(partition)
    sizes = [each.size_bytes for each in listed]
    assert counted() == (len(listed), sum(sizes), 0, 0)
    seen: list[tuple[int, ...]] = []
    node.ports.before = lambda name: seen.append(counted()) if name.startswith("Delete ") else None
    log.delete_records_before(listed[1].next_offset)
    tier.pass_ms(2_000)
    assert seen[0] == (len(listed), sum(sizes), 2, sum(sizes[:2]))
    assert counted() == (len(listed) - 2, sum(sizes[2:]), 0, 0)
    node.resign(partition)
    assert counted() == (0, 0, 0, 0)
