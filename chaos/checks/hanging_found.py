from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chaos.checks.check import Check
from chaos.checks.history import History, Place, grouped, place
from chaos.checks.transactions import Transaction, transactions
from reports.rows import ToldTransactionRow

NOT_ADDED = "not_added"
"""``TransactionRow.error`` of a transaction of which no coordinator heard."""


class _Key(NamedTuple):
    """An open transaction: where it is, of whom, and its first offset there."""

    where: Place
    producer_id: int
    start_offset: int


class HangingFound(Check):
    """hanging-found: with Kafka's requests an admin finds each hanging transaction, no other, and can abort it (X-12).

    KIP-664: DescribeProducers tells of each transaction that is open in a partition where it begins. ListTransactions
    and DescribeTransactions tell which of them a coordinator still expects to end. WriteTxnMarkers ends the others.

    - A transaction of which no coordinator ever heard is told by each look at its partition, until somebody asks to
      abort it.
    - What a janitor found hanging in two looks was not open and known to its coordinator. A transaction is surely both
      from its first acknowledged write until its producer asks for its end, or until its timeout.
    - What was aborted with success is told by no later look.

    A leader that was replaced and does not know it may tell what is no longer true. So a scenario in which nodes are
    cut off or paused promises none of that.
    """

    guarantee = "hanging-found"

    def end(self, history: History) -> None:
        told = history.told_transactions
        self.looked_at += len(told)
        begun = {
            _Key(place(run), run.producer_id, run.first_offset): each
            for each in transactions(history)
            for run in each.sent
            if run.first_offset >= 0
        }
        by_key = grouped(told, _key)
        self._judge_missed(told, begun, by_key)
        for key, rows in by_key.items():
            for row in rows:
                if row.abort:
                    self._judge_aborted(row, begun.get(key))
                if row.abort == "ok":
                    self._judge_left(row, rows)

    def _judge_missed(
        self,
        told: Sequence[ToldTransactionRow],
        begun: dict[_Key, Transaction],
        by_key: dict[_Key, list[ToldTransactionRow]],
    ) -> None:
        looks = grouped(told, place)
        for key, transaction in begun.items():
            if transaction.row.error != NOT_ADDED:
                continue
            named = by_key.get(key, [])
            found = {(row.process, row.index) for row in named}
            aborted_us = min((row.abort_us for row in named if row.abort), default=None)
            for look in _looks_between(looks.get(key.where, []), transaction.row.at_us, aborted_us):
                if (look.process, look.index) not in found:
                    self.violated(
                        look.told_us,
                        f"{look.process} was told nothing of {transaction.named}, which hangs in "
                        f"{key.where[0]}-{key.where[1]} from offset {key.start_offset} on",
                    )

    def _judge_aborted(self, row: ToldTransactionRow, transaction: Transaction | None) -> None:
        if transaction is None or transaction.row.error == NOT_ADDED:
            return
        its = transaction.row
        is_same = its.producer_epoch == row.producer_epoch
        if is_same and its.from_us <= row.asked_us and row.told_us < min(its.at_us, its.from_us + its.timeout_us):
            self.violated(
                row.told_us,
                f"{row.process} found {transaction.named} hanging in {row.topic}-{row.partition} and aborted it, while "
                f"its producer had it open",
            )

    def _judge_left(self, row: ToldTransactionRow, rows: Sequence[ToldTransactionRow]) -> None:
        for later in rows:
            if later.asked_us >= row.abort_end_us:
                self.violated(
                    later.told_us,
                    f"{row.process} aborted the transaction of producer {row.producer_id} in {row.topic}-"
                    f"{row.partition} from offset {row.start_offset} on, and {later.process} was told that it is open",
                )


def _key(row: ToldTransactionRow) -> _Key:
    return _Key(place(row), row.producer_id, row.start_offset)


def _looks_between(
    rows: Sequence[ToldTransactionRow], from_us: int, until_us: int | None
) -> Iterator[ToldTransactionRow]:
    """Yields one row of each look that asked at or after ``from_us`` and was over before ``until_us``."""
    seen = set[tuple[str, int]]()
    for row in rows:
        if (row.process, row.index) in seen or row.asked_us < from_us:
            continue
        if until_us is None or row.told_us < until_us:
            seen.add((row.process, row.index))
            yield row
