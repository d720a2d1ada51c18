"""The epoch in a response to a client is one that the node had between the request and the response (M-4)."""

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.metadata_epoch import FIRST_DRAFT, METADATA, OneContentPerEpoch
from chaos.tests.check_context import check_context
from reference_broker.core.events import Reply, Request
from reference_broker.wire.tags import Tag

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
