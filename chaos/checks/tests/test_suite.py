"""A check is called only for events that touch what it acts on."""

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING

import pytest

from chaos.checks.check import Check, Kind
from chaos.checks.suite import CheckSuite, check_kinds
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubNode
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCE, METADATA = 0, 3
REQUEST = Request(1, 7, PRODUCE, 9, "p", None, Tag(PRODUCE, 9, "p"))
REPLY = Reply(1, 7, PRODUCE, 9, None, Tag(PRODUCE, 9, "p"))
SEND = Send(2, Channel.CONTROLLER, 1, METADATA, 12, None, Tag(METADATA, 12, "node-1", role="peer"), 1000, "node-1")


class Acting(Check):
    def __init__(self) -> None:
        super().__init__(check_context())
        self.seen: list[Event | None] = []

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self.seen.append(event)


@pytest.mark.parametrize(
    ("kind", "event", "effects", "touches"),
    [
        (PRODUCE, REQUEST, [], True),
        (METADATA, REQUEST, [], False),
        (PRODUCE, Closed(1), [REPLY], True),
        (METADATA, Closed(1), [REPLY], False),
        (Closed, Closed(1), [], True),
        (NoneType, None, [], True),
        ("ready", None, [Note("ready", ())], True),
        ("ready", None, [Note("stopped", ())], False),
        (Note, None, [Note("ready", ())], False),
        ((Send, METADATA), None, [SEND], True),
        ((Send, PRODUCE), None, [SEND], False),
        (METADATA, None, [SEND], False),
    ],
)
def test_check_is_called_for_events_that_touch_its_kinds_only(
    kind: Kind, event: Event | None, effects: list[Effect], touches: bool
) -> None:
    class Picky(Acting):
        acts_on = (kind,)

    node = StubNode().as_node()
    check = Picky()
    CheckSuite([check], check.context).acted(0, node, event, effects)
    assert check.seen == ([event] if touches else [])


def test_each_check_that_sees_events_declares_which() -> None:
    acting = [kind for kind in check_kinds() if kind.acted is not Check.acted]
    assert acting
    assert all(kind.acts_on for kind in acting)
