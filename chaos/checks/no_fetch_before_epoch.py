"""no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is new enough.

Its metadata must be as new as the epoch that was committed with the offset (M-10), or stored with the offset elsewhere
(M-13). A client that left has forgotten all epochs.
"""

from chaos.checks.check import Check, History
from chaos.checks.values import Place

LEARNT = ("fetched", "loaded")
"""Kinds of rows that bring a consumer an offset with its epoch."""


class NoFetchBeforeEpoch(Check):
    guarantee = "no-fetch-before-epoch"

    def end(self, history: History) -> None:
        owed: dict[str, list[tuple[int, int, Place, int]]] = {}
        for row in history.commits:
            if row.kind in LEARNT and row.error is None and row.metadata_epoch >= 0:
                entry = (row.at_us, row.index, (row.topic, row.partition), row.metadata_epoch)
                owed.setdefault(row.process, []).append(entry)
        if not owed:
            return
        operations = history.operation_of()
        fetched: dict[tuple[str, Place], list[tuple[int, int]]] = {}
        for position in history.positions:
            operation = operations.get((position.process, position.index))
            if position.process in owed and operation is not None and operation.f == "fetch":
                where = (position.topic, position.partition)
                fetched.setdefault((position.process, where), []).append((operation.invoke_us, position.index))
        taken: dict[str, list[tuple[int, int]]] = {}
        for news in history.metadata_epochs:
            if news.accepted and news.process in owed:
                taken.setdefault(news.process, []).append((news.at_us, news.metadata_epoch))
        left: dict[str, list[int]] = {}
        for member in history.memberships:
            if member.event == "left" and member.process in owed:
                left.setdefault(member.process, []).append(member.at_us)
        for process, entries in owed.items():
            for at_us, index, where, epoch in entries:
                first = min((each for each in fetched.get((process, where), ()) if each[0] >= at_us), default=None)
                if first is None:
                    continue
                since_us = max((each for each in left.get(process, ()) if each <= first[0]), default=-1)
                if since_us > at_us:
                    continue  # The client has forgotten that, and learnt it again.
                had = max((each[1] for each in taken.get(process, ()) if since_us < each[0] <= first[0]), default=-1)
                if had < epoch:
                    self.violated(
                        first[0],
                        f"{process} fetched {where[0]}-{where[1]} (operation {first[1]}) with metadata epoch {had}; "
                        f"the offset from operation {index} has epoch {epoch}",
                    )
