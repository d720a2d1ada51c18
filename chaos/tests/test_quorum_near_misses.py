"""What excuses a breach by the quorum, and what does so by a hair no longer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.checks.fetch_session_cache import FEW_SESSIONS, MetricsExact
from chaos.checks.metadata_epoch import FEATURE, SwitchRespected
from chaos.checks.partition_logs import DamageKept
from chaos.sim.disk import SimDisk
from chaos.tests.check_context import check_context
from chaos.tests.test_quorum_checks import BEGIN, SECOND_US, Quorum, batch, settled
from reference_broker.core.events import Note, Reply, Send
from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.tags import Tag

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


@pytest.mark.clause("F-21")
@pytest.mark.parametrize("count", [FEW_SESSIONS, FEW_SESSIONS + 1])
def test_partitions_of_many_sessions_are_counted_in_the_thorough_comparison(count: int) -> None:
    values = [SimpleNamespace(value=each) for each in (count, count + 1, 0)]
    metrics = SimpleNamespace(gauge=lambda *names: values["Partitions" in names[2]], counter=lambda *_: values[2])
    sessions = {each: SimpleNamespace(partitions=[None], has_unfinished_fetch=False) for each in range(count)}
    fetch_sessions = SimpleNamespace(sessions=sessions)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, metrics=metrics, fetch_sessions=fetch_sessions))
    check = MetricsExact(check_context())
    check.inspect(0, 0, node, None, thorough=False)
    assert bool(check.violations) is (count <= FEW_SESSIONS)
    check.inspect(1, 0, node, None, thorough=True)
    assert check.violations


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("level", [0, 1])
def test_drafts_are_sent_only_while_the_feature_is_finalized(level: int) -> None:
    loader = SimpleNamespace(image=SimpleNamespace(features={FEATURE: level}, metadata_epoch=0))
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, loader=loader), listening=True)
    check = SwitchRespected(check_context())
    body: Any = None
    check.acted(0, node, None, [Send(1, Channel(0), 0, 6, 1000, body, Tag(6, 1000, "node-0", 0, -1), 1000, "node-0")])
    assert bool(check.violations) is not level


@pytest.mark.clause("M-14")
def test_level_0_ends_updates_and_epochs() -> None:
    image = SimpleNamespace(features={FEATURE: 1}, metadata_epoch=7)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, loader=SimpleNamespace(image=image)), listening=True)
    body: Any = None
    update = Send(1, Channel(0), 0, 6, 1000, body, Tag(6, 1000, "node-0", 0, -1), 1000, "node-0")
    check = SwitchRespected(check_context())
    other: Any = SimpleNamespace()
    check.acted(1, node, other, [update])
    image.features = {FEATURE: 0}
    check.acted(2, node, other, [update])
    assert not check.violations, "it was sent before the node read the level"
    check.acted(3, node, other, [])
    assert not check.violations
    check.acted(4, node, other, [update])
    assert len(check.violations) == 1
    image.metadata_epoch = 8
    check.acted(5, node, other, [])
    assert [each.story for each in check.violations[1:]] == [f"node 0 read metadata epoch 8 while {FEATURE} was at 0"]


@pytest.mark.clause("M-14")
@pytest.mark.parametrize("is_on_again", [True, False])
@pytest.mark.parametrize(("epoch", "right"), [(6, False), (7, False), (8, True)])
def test_no_update_from_before_level_0_is_applied(epoch: int, right: bool, is_on_again: bool) -> None:
    image = SimpleNamespace(features={FEATURE: 1}, metadata_epoch=7)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, loader=SimpleNamespace(image=image)), listening=True)
    check, event = SwitchRespected(check_context()), cast("Any", SimpleNamespace())
    applied = Note("update_metadata_applied", (("epoch", epoch), ("controller_epoch", 1), ("controller_id", 0)))
    check.acted(1, node, event, [applied])
    image.features = {FEATURE: 0}
    check.acted(2, node, event, [applied])
    assert not check.violations, "it was applied before the node read the level"
    if is_on_again:
        image.features = {FEATURE: 1}
    check.acted(3, node, event, [])
    check.acted(4, node, event, [applied])
    assert ("(M-14)" not in " ".join(each.story for each in check.violations)) is right


@pytest.mark.clause("M-4", "M-14")
@pytest.mark.parametrize(
    ("epochs", "right"), [((-1, 4, 4, 5), True), ((4, None, 4), True), ((4, -1), False), ((4, 3), False)]
)
def test_node_that_has_sent_clients_an_epoch_sends_no_smaller_one(epochs: tuple[int | None, ...], right: bool) -> None:
    """None: a response of one of Kafka's versions, which has no epoch."""
    node: Any = SimpleNamespace(
        broker=SimpleNamespace(
            node_id=0,
            loader=SimpleNamespace(image=SimpleNamespace(features={}, metadata_epoch=0)),
            partitions=SimpleNamespace(),
        ),
        listening=True,
    )
    check, other_life = SwitchRespected(check_context()), SwitchRespected(check_context())
    for epoch in epochs:
        body: Any = SimpleNamespace() if epoch is None else SimpleNamespace(metadata_epoch=epoch)
        response = Reply(1, 7, 3, 1001, body, Tag(3, 1001, "member-0", 0, -1))
        check.acted(0, node, SimpleNamespace(), [response])  # type: ignore[arg-type]
        other_life.acted(0, node, None, [response])
    assert (check.violations == []) is right
    assert other_life.violations == [], "a node starts again with its process"


@pytest.mark.parametrize(
    ("path", "kept", "right"), [("t-0/a", False, False), ("t-0/a", True, True), ("u-0/a", False, True)]
)
def test_damage_is_kept_but_that_of_deleted_topics(path: str, kept: bool, right: bool) -> None:
    from random import Random

    disk = SimDisk(Random(1))
    disk.damaged.append((path, b"damaged"))
    if kept:
        disk.append("t-0/another", [b"damaged"])
    controller = SimpleNamespace(image=SimpleNamespace(topics={"t": None}))
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, disk=disk, controller=controller), ready=True)
    check = DamageKept(check_context())
    check.inspect(0, 0, node, None, thorough=True)
    assert (check.violations == []) is right
