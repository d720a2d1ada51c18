"""Faults that excuse a violation by the quorum, and faults that just fail to."""

import pytest

from chaos.tests.test_quorum_checks import BEGIN, SECOND_US, Quorum, batch, settled
from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import MetadataImage

SETTLED_US, SESSION_US = 6 * SECOND_US, 12 * SECOND_US


@pytest.fixture
def quorum() -> Quorum:
    return settled()


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["leader", "voters", "links"])
def test_leader_falls_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 20 * SECOND_US
    until_us = quorum.now_us + 1 - SETTLED_US - too_long_ago_us  # The new leader is seen in the next microsecond.
    for number in {"leader": (0,), "voters": (1, 2), "links": ()}[touched]:
        quorum.fault_times.node(number, until_us)
    for number in (1, 2) if touched == "links" else ():
        quorum.fault_times.link(number, 0, until_us)
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 2, 1
    quorum.observe(1)
    assert ("stable-leadership" in quorum.broken()) is bool(too_long_ago_us)


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["broker", "controller", "link"])
def test_broker_is_fenced_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 60 * SECOND_US
    until_us = quorum.now_us - SESSION_US - too_long_ago_us
    if touched == "link":
        quorum.fault_times.link(3, 0, until_us)
    else:
        quorum.fault_times.node(3 if touched == "broker" else 0, until_us)
    quorum.note(0, "broker_fenced", broker=3)
    assert quorum.broken() == (["no-false-fencing"] if too_long_ago_us else [])


@pytest.mark.parametrize(("waited_us", "right"), [(SESSION_US, True), (SESSION_US + 1, False)])
def test_new_controller_has_no_heartbeats_yet(quorum: Quorum, waited_us: int, right: bool) -> None:
    led_us = quorum.now_us + 2  # The second look of ``elect`` sees node 1.
    quorum.elect(1, 2)
    quorum.now_us = led_us + waited_us
    quorum.note(1, "broker_fenced", broker=3)
    assert ("no-false-fencing" not in quorum.broken()) is right


@pytest.mark.parametrize("replaced", [True, False])
def test_only_another_directory_forgets_an_epoch(quorum: Quorum, replaced: bool) -> None:
    node = quorum.nodes[1]
    if replaced:
        quorum.fault_times.directory(1)
    node.epoch, node.leader_id, node.incarnation = 0, -1, 1
    quorum.observe(1)
    assert ("monotonic-epoch" in quorum.broken()) is not replaced


@pytest.mark.parametrize("held", [True, False])
def test_batches_after_a_part_known_only_as_a_snapshot_are_still_compared(quorum: Quorum, held: bool) -> None:
    quorum.append(batch(3, 1), to=(0, 1, 2, 3))
    quorum.commit(4)
    del quorum.view.committed[1]
    node = quorum.nodes[2]
    if not held:
        node.held = node.held[:3]
        quorum.observe(2, thorough=True)
    quorum.fault_times.node(0, quorum.now_us)
    node.is_leader, node.epoch, node.leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is not held


@pytest.mark.parametrize("before", [True, False])
def test_leader_that_learns_late_of_its_election_may_lack_what_a_later_one_committed(
    quorum: Quorum, before: bool
) -> None:
    """The leader must have what was committed before the later leader began."""
    quorum.fault_times.node(0, quorum.now_us)
    if before:
        quorum.append(batch(3, 1), to=(0, 1, 3))
        quorum.commit(4, 0, 1, 3)
    quorum.nodes[0].is_leader = False
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 3, 1
    quorum.observe(1)
    if not before:
        quorum.append(batch(3, 3), to=(1, 3))
        quorum.commit(4, 1, 3)
    quorum.nodes[2].is_leader, quorum.nodes[2].epoch, quorum.nodes[2].leader_id = True, 2, 2
    quorum.observe(2)
    assert ("leader-completeness" in quorum.broken()) is before


@pytest.mark.thorough
@pytest.mark.clause("T-2", "T-7")
@pytest.mark.parametrize(("level", "right"), [(0, True), (1, False), (12, False), (13, True)])
def test_markers_are_allowed_from_metadata_version_13_on(quorum: Quorum, level: int, right: bool) -> None:
    quorum.append(batch(3, 1, BEGIN))
    for node in quorum.nodes:
        node.image = MetadataImage(features={METADATA_VERSION_FEATURE: level} if level else {})
    quorum.observe(0)
    quorum.note(0, "metadata_committed", kind="begin", offset=3)
    assert quorum.broken() == ([] if right else ["markers-gated"])
