"""Logs that contradict themselves, and damaged files of logs."""

import pytest

from chaos.checks.log.partition_logs import DamageKept, LogConsistent
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.client_history import TOPIC
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubImages,
    StubLog,
    StubNode,
    image_of,
    node_partitions,
    topic_image,
)
from chaos.sim.disk import SimDisk
from reference_broker.replication.partitions import Partition


def test_high_watermark_that_goes_back_violates_log_consistent() -> None:
    log = StubLog(high_watermark=5, log_end_offset=5)
    partitions = node_partitions(Partition(TOPIC, bytes(16), 0, 0, log.as_log()))
    subject = StubNode(StubBroker(partitions=partitions)).as_node()
    check = LogConsistent(check_context())
    check.inspect(0, 0, subject, None, thorough=True)
    log.high_watermark = 4
    check.inspect(0, 1, subject, None, thorough=True)
    assert check.violations == [], "another incarnation may begin lower"
    log.high_watermark = 3
    check.inspect(0, 1, subject, None, thorough=True)
    log.high_watermark = 6
    check.inspect(0, 1, subject, None, thorough=True)
    assert [violation.explanation.split(": ")[1][:20] for violation in check.violations] == [
        "high watermark went ",
        "high watermark 6 is ",
    ]


@pytest.mark.parametrize(
    ("path", "kept", "right"), [("t-0/a", False, False), ("t-0/a", True, True), ("u-0/a", False, True)]
)
def test_damage_is_kept_but_that_of_deleted_topics(path: str, kept: bool, right: bool) -> None:
    from random import Random

    disk = SimDisk(Random(1))
    disk.damaged.append((path, b"damaged"))
    if kept:
        disk.append("t-0/another", [b"damaged"])
    node = StubNode(StubBroker(disk=disk, controller=StubImages(image_of(topic_image("t"))))).as_node()
    check = DamageKept(check_context())
    check.inspect(0, 0, node, None, thorough=True)
    assert (check.violations == []) is right
