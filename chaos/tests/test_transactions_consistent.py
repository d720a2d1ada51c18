"""A coordinator of transactions that contradicts itself is seen after the event."""

from types import SimpleNamespace
from typing import Any

from chaos.checks.transaction_steps import TransactionsConsistent
from chaos.tests.check_context import check_context
from reference_broker.transactions.tests.transaction_world import TransactionWorld


def test_coordinator_that_contradicts_itself_is_a_violation() -> None:
    world = TransactionWorld()
    target = world.coordinate(0)
    assert target is not None
    id_ = world.id_in(0)
    world.taken(id_)
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=1, transactions=world.transactions))
    check = TransactionsConsistent(check_context())
    check.inspect(7, 0, node, None, False)
    assert not check.violations
    held = target.entries[id_]
    held.current = held.current._replace(transactional_id="other")
    check.inspect(9, 0, node, None, False)
    (violation,) = check.violations
    assert (violation.at_us, violation.story.endswith(f"is stored under {id_}")) == (9, True)
