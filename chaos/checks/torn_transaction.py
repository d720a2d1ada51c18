"""torn-transaction: a transaction takes effect as a whole or not at all, its offsets included.

What is torn inside: some of its values were seen by readers with read_committed, and others are missing. What is torn
outside: it was committed, and its group is told an older offset than it sent, or it was not, and the group is told one
that only such transactions sent. Whatever commit may have taken effect meanwhile explains an offset.
"""

from chaos.checks.check import Check, History
from chaos.checks.transacted import Transacted, missing, shown, transacted
from reports.rows import CommitRow

Stored = tuple[str, str, int]


class TornTransaction(Check):
    guarantee = "torn-transaction"

    def end(self, history: History) -> None:
        told = {(each.row.process, each.row.index): each for each in transacted(history)}
        for each in told.values():
            if each.is_refuted:
                continue
            self.looked_at += each.is_committed
            gone = missing(each, history)
            if gone and any(value in shown(history) for value, _ in each.values):
                self.violated(each.row.until_us, f"{len(gone)} values of {each.story} are missing, as {gone[0]}")
        self._offsets(history, told)

    def _offsets(self, history: History, told: dict[tuple[str, int], Transacted]) -> None:
        sent: dict[Stored, list[tuple[CommitRow, Transacted]]] = {}
        plain: dict[Stored, list[CommitRow]] = {}
        for row in history.commits:
            if row.kind == "transaction" and (row.process, row.index) in told:
                sent.setdefault(_stored(row), []).append((row, told[row.process, row.index]))
            elif row.kind == "commit":
                plain.setdefault(_stored(row), []).append(row)
        for row in history.commits:
            if row.kind == "fetched" and row.error is None and _stored(row) in sent:
                self._fetched(history, row, sent[_stored(row)], plain.get(_stored(row), []))

    def _fetched(
        self, history: History, row: CommitRow, sent: list[tuple[CommitRow, Transacted]], plain: list[CommitRow]
    ) -> None:
        operation = history.operation_of.get((row.process, row.index))
        begun_us = row.at_us if operation is None else operation.invoke_us
        done = [
            (each.row.at_us, one.offset) for one, each in sent if each.is_committed and each.row.until_us <= begun_us
        ]
        asked_us, offset = max((each for each in done if each[1] > row.offset), default=(-1, -1))
        others = {one.offset for one, each in sent if not each.is_refuted and _may_be_later(each, asked_us)}
        others |= {one.offset for one in plain if one.at_us >= asked_us}
        if offset >= 0 and row.offset not in others:
            self.violated(row.at_us, f"{row.process} was told offset {row.offset}; {offset} was committed before")
        refuted = {one.offset for one, each in sent if each.is_refuted and each.row.from_us <= row.at_us}
        possible = {one.offset for one, each in sent if not each.is_refuted} | {one.offset for one in plain}
        if row.offset in refuted - possible:
            self.violated(row.at_us, f"{row.process} was told offset {row.offset}, which was never committed")


def _may_be_later(each: Transacted, asked_us: int) -> bool:
    """Whether it may have taken effect after that time."""
    return not each.is_committed or each.row.until_us > asked_us


def _stored(row: CommitRow) -> Stored:
    return row.group, row.topic, row.partition
