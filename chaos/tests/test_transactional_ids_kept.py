"""The check of transactional IDs: silent while they are kept and forgotten in time, loud when not."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.transactional_ids import SLACK_MS, TransactionalIdsKept
from chaos.tests.check_context import check_context
from reference_broker.core.events import Reply, Request
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

INIT, END, ADD = 22, 26, 24
EXPIRES_MS, TIMEOUT_MS, LONGEST_MS, INTERVALS_MS = 10_000, 1_000, 60_000, 150
LATEST_MS = EXPIRES_MS + TIMEOUT_MS + INTERVALS_MS + SLACK_MS
CONCURRENT_TRANSACTIONS = 51

pytestmark = pytest.mark.clause("X-7", "X-10")


class Talk:
    """One node that coordinates, and its clients."""

    def __init__(self) -> None:
        self.check = TransactionalIdsKept(check_context())
        self.led: dict[Any, Any] = {("__transaction_state", 0): SimpleNamespace(leader_epoch=3)}
        config = SimpleNamespace(
            transaction_max_timeout_ms=LONGEST_MS,
            transactional_id_expiration_ms=EXPIRES_MS,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
            transaction_remove_expired_transaction_cleanup_interval_ms=50,
        )
        self.broker = SimpleNamespace(
            node_id=0,
            config=config,
            now=SimpleNamespace(wall_ms=0),
            partitions=SimpleNamespace(by_name=self.led),
        )
        self.now_ms = 0
        self.wall_ahead_ms = 0

    def wait(self, time_ms: int) -> None:
        self.now_ms += time_ms

    def handle(self, api_key: int, body: Any, response: Any = None) -> None:
        node: Any = SimpleNamespace(broker=self.broker)
        self.broker.now.wall_ms = self.now_ms + self.wall_ahead_ms
        request = Request(1, 1, api_key, 5, "tx", body, Tag(1, 5, "tx", 0, -1))
        replies = [] if response is None else [Reply(1, 1, api_key, 5, response, Tag(1, 5, "tx", 0, -1))]
        self.check.acted(self.now_ms * 1000, node, request, replies)

    def take(self, producer_id: int, timeout_ms: int = TIMEOUT_MS, error: int = 0) -> None:
        body = SimpleNamespace(transactional_id="id", transaction_timeout=timedelta(milliseconds=timeout_ms))
        self.handle(INIT, body, SimpleNamespace(error_code=error, producer_id=producer_id, producer_epoch=0))

    def end(self) -> None:
        self.handle(END, SimpleNamespace(transactional_id="id"), SimpleNamespace(error_code=0))

    def add(self) -> None:
        self.handle(ADD, SimpleNamespace(transactions=[SimpleNamespace(transactional_id="id")]))

    @property
    def stories(self) -> list[str]:
        return [each.story for each in self.check.violations]


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_timeout_above_the_maximum_must_be_refused(talk: Talk) -> None:
    talk.take(7, LONGEST_MS)
    talk.take(-1, LONGEST_MS + 1, error=ErrorCode.invalid_transaction_timeout)
    assert talk.stories == []
    talk.take(7, LONGEST_MS + 1)
    assert talk.stories == [f"id was granted a timeout of {LONGEST_MS + 1} ms"]


@pytest.mark.parametrize(
    ("idle_ms", "producer_id", "right"),
    [
        (EXPIRES_MS - 1, 7, True),
        (EXPIRES_MS - 1, 8, False),
        (EXPIRES_MS, 8, True),
        (LATEST_MS, 7, True),
        (LATEST_MS + 1, 7, False),
        (LATEST_MS + 1, 8, True),
    ],
)
def test_id_is_forgotten_in_time_and_not_before(talk: Talk, idle_ms: int, producer_id: int, right: bool) -> None:
    talk.take(7)
    talk.end()
    talk.wait(idle_ms)
    talk.take(producer_id)
    assert (talk.stories == []) == right


@pytest.mark.parametrize(
    "handle", [Talk.add, partial(Talk.take, producer_id=-1, error=CONCURRENT_TRANSACTIONS), Talk.end]
)
def test_producer_that_sends_requests_is_not_idle(talk: Talk, handle: Callable[[Talk], None]) -> None:
    talk.take(7)
    talk.wait(LATEST_MS)
    handle(talk)
    talk.wait(LATEST_MS)
    talk.take(7)
    assert talk.stories == []


@pytest.mark.parametrize("producer_id", [7, 8])
def test_step_of_the_clock_forgets_sooner_or_later(talk: Talk, producer_id: int) -> None:
    talk.take(7)
    talk.wait(1 if producer_id == 8 else LATEST_MS + 1)
    talk.wall_ahead_ms = EXPIRES_MS if producer_id == 8 else -10
    talk.take(producer_id)
    assert talk.stories == []


@pytest.mark.parametrize("producer_id", [7, 8])
def test_another_node_may_have_coordinated_it_meanwhile(talk: Talk, producer_id: int) -> None:
    talk.take(7)
    talk.wait(1 if producer_id == 8 else LATEST_MS + 1)
    talk.led["__transaction_state", 0] = SimpleNamespace(leader_epoch=4)
    talk.take(producer_id)
    assert talk.stories == []


def test_fault_delays_forgetting_and_not_the_rest(talk: Talk) -> None:
    fault_times = talk.check.context.quorum.fault_times
    talk.take(7)
    fault_times.node(2, 1000)
    talk.wait(LATEST_MS + 1)
    talk.take(7)
    assert talk.stories == []
    fault_times.node(0, talk.now_ms * 1000)
    talk.take(8)
    assert len(talk.stories) == 1
