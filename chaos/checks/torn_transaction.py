from chaos.checks.check import Check
from chaos.checks.committed_offsets import COMMIT, FETCHED, NEVER_US, Asked, asked
from chaos.checks.history import History, grouped
from chaos.checks.transactions_seen import Fate, Transaction, missing, sightings, transactions

Part = tuple[Transaction, int]
"""A transaction and the offset that it sent for one partition of a group."""


class TornTransaction(Check):
    """torn-transaction: a transaction takes effect whole or not at all.

    Torn inside: readers with read_committed saw one of its values, and another is missing. This also holds for a
    transaction of which nobody knows whether it was committed.

    Torn outside: its values and the group offsets that it sent disagree. A group is told an offset that only a
    transaction sent which was never committed. Or it is told an older offset after a transaction that sent a newer one
    was committed.
    """

    guarantee = "torn-transaction"

    def end(self, history: History) -> None:
        if not history.transactions:
            return
        self.looked_at += sum(each.fate is Fate.COMMITTED for each in transactions(history))
        if history.writes_promised:  # Physical: one replica that lost its power has lost any part of what it had.
            self._inside(history)
        self._outside(history)

    def _inside(self, history: History) -> None:
        seen = sightings(history)
        for each in transactions(history):
            there = [key for key, _ in each.values() if key in seen]
            gone = missing(history, each) if there and each.fate is not Fate.NEVER else []
            if gone:
                ((topic, partition), writer, sequence), value = gone[0]
                self.violated(
                    each.row.until_us,
                    f"of {each.named} {len(there)} values were read with read_committed, and {len(gone)} are missing, "
                    f"such as {writer}/{sequence} at {topic}-{partition} offset {value.offset}",
                )

    def _outside(self, history: History) -> None:
        parts = [
            ((row.group, row.topic, row.partition), (each, row.offset))
            for each in transactions(history)
            for row in each.offsets
            if row.error is None
        ]
        sent = {key: [part for _, part in some] for key, some in grouped(parts, lambda each: each[0]).items()}
        plain = asked(history, COMMIT)
        for key, fetches in asked(history, FETCHED).items():
            if key in sent:
                for fetch in fetches:
                    self._judge(fetch, sent[key], plain.get(key, []))

    def _judge(self, fetch: Asked, sent: list[Part], plain: list[Asked]) -> None:
        told = fetch.row.offset
        of_plain = [each for each in plain if each.row.offset == told and each.invoke_us <= fetch.until_us]
        of_sent = [each for each, offset in sent if offset == told and each.row.at_us <= fetch.until_us]
        possible = [each for each in of_sent if each.fate is not Fate.NEVER]
        if of_sent and not possible and not of_plain:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {told} was told, which only {of_sent[0].named} sent. It was never committed",
            )
        done = [
            (each, offset)
            for each, offset in sent
            if each.fate is Fate.COMMITTED and each.row.until_us <= fetch.invoke_us
        ]
        if not done:
            return
        last, newest = max(done, key=lambda part: part[0].row.at_us)
        if told >= newest:
            return
        # Physical: what was asked for before the last commit ended may have taken effect after it.
        late = any(each.until_us > last.row.at_us for each in of_plain) or any(
            _ended_us(each) > last.row.at_us for each in possible
        )
        if not late:
            self.violated(
                fetch.until_us,
                f"{fetch.named}: offset {told} was told, though {last.named} had committed {newest}",
            )


def _ended_us(transaction: Transaction) -> int:
    return NEVER_US if transaction.fate is Fate.UNKNOWN else transaction.row.until_us
