"""Transactions of metadata, and what nodes publish of them."""

import pytest

from chaos.checks.metadata.metadata_transactions import PUBLISHED_WITHIN_US, PublishedWhenCommitted
from chaos.checks.metadata.tests.metadata_quorum import ABORT, BEGIN, END, Quorum, batch, settled
from chaos.checks.tests.check_context import note_row
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from reference_broker.core.events import Note, TimerFired
from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import MetadataRecord, NoOpRecord


@pytest.fixture
def quorum() -> Quorum:
    return settled()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("markers", "right"),
    [((BEGIN, END, BEGIN, ABORT), True), ((BEGIN, BEGIN), False), ((BEGIN, ABORT, ABORT), False), ((END,), False)],
)
def test_each_begin_has_one_end(quorum: Quorum, markers: tuple[MetadataRecord, ...], right: bool) -> None:
    quorum.append(*(batch(3 + place, 1, marker) for place, marker in enumerate(markers)))
    quorum.commit(3 + len(markers))
    assert quorum.broken() == ([] if right else ["one-abort-per-begin"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("first", "right"), [(ABORT, True), (NoOpRecord(), False), (END, False)])
def test_new_controller_aborts_before_anything_else(quorum: Quorum, first: MetadataRecord, right: bool) -> None:
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), batch(5, 2, first))
    quorum.commit(6)
    assert ("one-abort-per-begin" in quorum.broken()) is not right


@pytest.mark.clause("T-3")
@pytest.mark.parametrize(("offset", "broken"), [(3, False), (4, True), (5, True)])
def test_no_metadata_is_published_after_misplaced_marker(quorum: Quorum, offset: int, broken: bool) -> None:
    (check,) = (each for each in quorum.checks if each.guarantee == "misplaced-markers-refused")
    quorum.append(batch(3, 1, BEGIN), batch(4, 1, BEGIN), batch(5, 1, END))
    check.trace(note_row(1, 2, PUBLISHED, offset=2))
    check.trace(note_row(2, 2, PUBLISHED, offset=offset))
    quorum.commit(6)
    quorum.end()
    assert bool(check.violations) is broken


@pytest.mark.clause("T-7")
def test_node_without_metadata_version_at_the_end_is_a_violation(quorum: Quorum) -> None:
    for number in range(4):
        quorum.nodes[number].image = EMPTY_IMAGE
        quorum.observe(number)
    quorum.end()
    assert quorum.broken() == ["bootstrapped"]


def publish(quorum: Quorum, number: int, offset: int) -> None:
    check = next(each for each in quorum.checks if isinstance(each, PublishedWhenCommitted))
    noted = Note("metadata_published", (("offset", offset), ("epoch", 1)))
    check.acted(quorum.now_us, quorum.nodes[number].node, TimerFired(1), [noted])


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("offset", "right"), [(2, True), (3, False)])
def test_only_committed_metadata_is_published(quorum: Quorum, offset: int, right: bool) -> None:
    publish(quorum, 1, offset)
    assert quorum.broken() == ([] if right else ["torn-metadata"])


@pytest.mark.clause("T-8")
@pytest.mark.parametrize("end", [END, ABORT, None])
@pytest.mark.parametrize(("offset", "right"), [(2, True), (3, False), (4, False)])
def test_no_part_of_a_transaction_is_published(
    quorum: Quorum, offset: int, right: bool, end: MetadataRecord | None
) -> None:
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), *([] if end is None else [batch(5, 1, end)]))
    quorum.nodes[1].published = 2
    quorum.commit(5 if end is None else 6)
    publish(quorum, 1, offset)
    quorum.nodes[1].epoch = 2
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(
    ("published", "waited_us", "open_at", "touched", "right"),
    [
        (2, 0, 0, False, False),
        (2, -10, 0, False, True),
        (3, 0, 0, False, True),
        (2, 0, 3, False, True),
        (1, 0, 3, False, False),
        (2, 0, 0, True, True),
    ],
)
def test_committed_metadata_is_published_in_time(
    quorum: Quorum, published: int, waited_us: int, open_at: int, touched: bool, right: bool
) -> None:
    quorum.now_us += 2 * PUBLISHED_WITHIN_US
    quorum.observe(1, thorough=True)
    quorum.nodes[1].epoch = 2
    quorum.observe(1)
    quorum.nodes[1].published = published
    quorum.append(batch(3, 1, *([BEGIN] if open_at else [])))
    quorum.commit(4)
    if touched:
        quorum.fault_times.node(1, quorum.now_us)
    quorum.now_us += PUBLISHED_WITHIN_US + waited_us
    quorum.nodes[1].epoch = 3
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("published", "right"), [(2, True), (1, False)])
def test_node_with_half_a_transaction_publishes_records_before_it(quorum: Quorum, published: int, right: bool) -> None:
    quorum.now_us += 2 * PUBLISHED_WITHIN_US
    quorum.observe(1, thorough=True)
    quorum.nodes[1].published = published
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), batch(5, 1, END))
    quorum.commit(6, 0, 2, 3)
    quorum.commit(5, 1)
    quorum.now_us += PUBLISHED_WITHIN_US + 1
    quorum.nodes[1].epoch = 3
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right


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
