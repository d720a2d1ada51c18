"""Metadata epochs in the history of clients, and in the responses and updates of brokers."""

from typing import TYPE_CHECKING, Any

import pytest

from chaos.checks.history import History
from chaos.checks.metadata_epoch import NonmonotonicMetadataEpoch
from chaos.tests.check_context import check_context
from chaos.tests.client_history import operation
from chaos.tests.test_group_checks import A, assigned, judged
from reference_broker.core.events import Reply, Request
from reference_broker.wire.tags import Tag
from reports.rows import MetadataEpochRow

if TYPE_CHECKING:
    pass
from types import SimpleNamespace

from chaos.checks.metadata_epoch import FIRST_DRAFT, METADATA, OneContentPerEpoch


@pytest.mark.clause("M-12")
@pytest.mark.parametrize(("left_us", "is_red"), [(9, False), (10, True)])
def test_client_restarts_only_once_it_has_left(left_us: int, is_red: bool) -> None:
    taken = [MetadataEpochRow(A, 1, 0, 5, True, 0), MetadataEpochRow(A, 2, 3, 4, True, 10)]
    history = History(metadata_epochs=taken, memberships=[assigned(A, 1, left_us, "left")])
    assert bool(judged(NonmonotonicMetadataEpoch(check_context()), history)) is is_red


@pytest.mark.clause("M-12")
@pytest.mark.parametrize(
    ("requested_us", "joined_us", "is_red"), [(7, 9, False), (8, 9, True), (8, 14, False), (8, 99, False)]
)
def test_metadata_that_was_requested_before_the_client_came_back_is_of_its_time_before(
    requested_us: int, joined_us: int, is_red: bool
) -> None:
    """The client left at 7. The response with epoch 5 came at 12 or 13, and one with epoch 4 later."""
    history = History(memberships=[assigned(A, 1, 7, "left"), assigned(A, 1, joined_us, "joined")])
    history.add(
        [
            operation(A, 1, "metadata", at_us=requested_us),
            MetadataEpochRow(A, 1, 0, 5, True, requested_us + 5),
            operation(A, 2, "metadata", at_us=20),
            MetadataEpochRow(A, 2, 3, 4, True, 25),
        ]
    )
    assert bool(judged(NonmonotonicMetadataEpoch(check_context()), history)) is is_red


TAG = Tag(METADATA, FIRST_DRAFT, "c")


@pytest.mark.clause("M-4")
@pytest.mark.parametrize(("sent", "is_wrong"), [(4, True), (5, False), (6, False), (7, False), (8, True), (-1, True)])
@pytest.mark.parametrize("alone", [False, True])
def test_response_in_slices_may_have_any_epoch_since_its_request(sent: int, is_wrong: bool, alone: bool) -> None:
    check = OneContentPerEpoch(check_context(alone=alone))
    cache = SimpleNamespace(metadata_epoch=5)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, metadata=cache))
    check.acted(0, node, Request(1, 1, METADATA, FIRST_DRAFT, "c", None, TAG), ())
    cache.metadata_epoch = 7
    response = SimpleNamespace(metadata_epoch=sent)
    check.acted(1, node, None, [Reply(1, 1, METADATA, FIRST_DRAFT, response, TAG)])
    assert bool(check.violations) == is_wrong


def test_live_node_judges_its_own_responses_and_compares_itself_with_no_other() -> None:
    assert OneContentPerEpoch.needs_one_node
    check = OneContentPerEpoch(check_context(alone=True))
    cache = SimpleNamespace(metadata_epoch=5, topics={}, live_brokers=tuple, controller_epoch=1)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=0, metadata=cache))
    for controller_epoch in (1, 2):
        cache.controller_epoch = controller_epoch
        check.inspect(0, controller_epoch, node, None, False)
    assert not check.violations
