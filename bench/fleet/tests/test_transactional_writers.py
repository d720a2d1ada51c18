"""Writers of transactions with a naive broker: their recorded outcomes match the broker's."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from bench.fleet.behaviours import protocol
from bench.fleet.behaviours.protocol import Address, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.transactional_client import ProducerHabits, TransactionalWriter, WriterPlan
from reference_broker.client.api_versions import API_VERSIONS
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.tests.transaction_world import LOST, NOT_ARRIVED, NaiveBroker
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reports.rows import OperationRow, SpanRow, TransactionRow

PARTITIONS = tuple(TopicPartition("foo", number) for number in range(2))
TIMEOUT_US = 3_000_000


@dataclass
class Driver:
    """Carries out a writer's actions with one broker. Time moves to the next wake, or to a timeout."""

    writer: TransactionalWriter
    broker: NaiveBroker
    now_us: int = 0
    wake_us: int = 0
    rows: list[HistoryRow] = field(default_factory=list)
    finished: bool = False
    ends_us: list[int] = field(default_factory=list)
    """when EndTxn was sent"""

    def give(self, event: protocol.FleetEvent) -> None:
        todo = [event]
        while todo:
            for action in self.writer.step(Now(self.now_us, self.now_us // 1000), todo.pop(0)):
                match action:
                    case protocol.Record():
                        self.rows += action.rows
                    case protocol.Connect():
                        todo.append(protocol.Connected(action.channel))
                    case protocol.Request():
                        todo.append(self._respond(action))
                    case protocol.Wake():
                        self.wake_us = action.at_us
                    case protocol.Finished():
                        self.finished = True

    def _respond(self, request: protocol.Request) -> protocol.FleetEvent:
        if request.api_key == API_VERSIONS:
            return protocol.ResponseReceived(self.broker.versions(), channel=request.channel)
        self.ends_us += [self.now_us] if request.api_key == ApiKey.END_TXN else []
        sent = GroupRequest(request.api_key, request.api_version, request.body, request.timeout_us)
        body = self.broker.respond(sent)
        if body is None:
            self.now_us += request.timeout_us
            return protocol.TimedOut(request.channel)
        return protocol.ResponseReceived(body, channel=request.channel)

    def run(self, until_us: int) -> None:
        while self.now_us < until_us and not self.finished:
            self.now_us = max(self.now_us + 1, self.wake_us)
            self.give(protocol.Woken())


def driver(level: int, seed: int = 1, **habits: Any) -> Driver:
    plan = WriterPlan(ProducerHabits("tx", ("foo",), TIMEOUT_US, **habits), PARTITIONS, 50_000, 2, 2, 60)
    settings = ClientSettings((Address("one", 9092),))
    made = Driver(TransactionalWriter(plan, settings, Random(seed)), NaiveBroker(level))
    made.give(protocol.Started())
    return made


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_each_transaction_is_recorded_with_its_fate(level: int, seed: int) -> None:
    played = driver(level, seed, abort_percent=20, die_percent=20, away_us=100_000)
    chance = Random(seed)
    for number in range(40):
        played.run(played.now_us + 100_000)
        if number % 3 == 0:
            key = chance.choice((ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID))
            played.broker.will(key, chance.choice((LOST, NOT_ARRIVED, ErrorCode.transaction_abortable)))
    played.broker.script.clear()
    played.give(protocol.Stopping())
    played.run(played.now_us + 30_000_000)
    assert played.finished
    ends = {row.index: row for row in played.rows if isinstance(row, TransactionRow)}
    types = {row.index: row.type for row in played.rows if isinstance(row, OperationRow) and row.f == "transaction"}
    assert ends.keys() == types.keys()
    assert {"commit", "abort", "nothing"} <= {row.requested_end for row in ends.values()}
    there = Counter(value for _, value in played.broker.committed)
    assert len(there) == sum(there.values()), "a value is there twice"
    for row in (each for each in played.rows if isinstance(each, SpanRow)):
        made = {
            played.writer.records.values.make(index)
            for index in range(row.first_sequence, row.first_sequence + row.count)
        }
        shown = len({each.decode("latin-1") for each in made} & there.keys())
        expected = {"ok": (row.count,), "fail": (0,), "info": (0, row.count)}[types[row.index]]
        assert shown in expected, (types[row.index], ends[row.index])


@pytest.mark.thorough
@pytest.mark.parametrize("abort_percent", [0, 100])
def test_end_txn_is_sent_when_records_are_acknowledged(abort_percent: int) -> None:
    """The first response to records comes late, and the first response to EndTxn is lost."""
    played = driver(2, abort_percent=abort_percent)
    played.broker.will(ApiKey.PRODUCE, NOT_ARRIVED)
    played.broker.will(ApiKey.END_TXN, LOST)
    played.run(120_000_000)
    first, *_ = (row for row in played.rows if isinstance(row, TransactionRow))
    assert first.at_us == played.ends_us[0]
    assert first.from_us + 1_000_000 < first.at_us < first.until_us - 1_000_000


def test_closed_writer_records_open_transaction() -> None:
    played = driver(2)
    played.broker.will(ApiKey.PRODUCE, *[NOT_ARRIVED] * 1_000)
    played.run(8_000_000)
    rows = played.writer.close(Now(played.now_us, 0))
    (end,) = [row for row in rows if isinstance(row, TransactionRow)]
    assert (end.requested_end, end.outcome) == ("commit", "failed")
    assert [row.type for row in rows if isinstance(row, OperationRow) and row.f == "transaction"] == ["info"]


def test_writer_that_disappears_leaves_transaction_open() -> None:
    played = driver(2, die_percent=100, comes_back=False)
    played.run(5_000_000)
    ended = [row for row in played.rows if isinstance(row, TransactionRow)]
    assert [row.requested_end for row in ended] in ([], ["nothing"]), "it died once"
    requests = len(played.broker.requests)
    played.give(protocol.Stopping())
    played.run(played.now_us + 5_000_000)
    assert (played.finished, len(played.broker.requests)) == (True, requests)
