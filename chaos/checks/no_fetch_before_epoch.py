from collections.abc import Iterator

from chaos.checks.check import Check
from chaos.checks.history import History, grouped, place
from reports.rows import CommitRow


class NoFetchBeforeEpoch(Check):
    """no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is new enough.

    Its metadata must be at least as new as the metadata epoch that was stored with the offset where the consumer
    begins. The offset comes from a commit (M-10) or from a store outside Kafka (M-13). A client that left has forgotten
    all epochs.
    """

    guarantee = "no-fetch-before-epoch"

    def end(self, history: History) -> None:
        owed = [row for row in learnt(history) if row.metadata_epoch >= 0]
        self.looked_at += len(owed)
        if not owed:
            return
        fetches = history.with_operations(history.positions, "fetch")
        fetched = grouped(fetches, lambda each: (each[0].process, place(each[0])))
        accepted = grouped((row for row in history.metadata_epochs if row.accepted), lambda row: row.process)
        left = grouped((row for row in history.memberships if row.event == "left"), lambda row: row.process)
        for row in sorted(owed, key=lambda row: row.process):
            starts = [
                (operation.invoke_us, position.index)
                for position, operation in fetched.get((row.process, place(row)), ())
                if operation.invoke_us >= row.at_us
            ]
            if not starts:
                continue
            first_us, first = min(starts)
            since_us = max((each.at_us for each in left.get(row.process, ()) if each.at_us <= first_us), default=-1)
            if since_us > row.at_us:
                continue  # The client left meanwhile, and learnt the offset again when it came back.
            known = [each.metadata_epoch for each in accepted.get(row.process, ()) if since_us < each.at_us <= first_us]
            had = max(known, default=-1)
            if had < row.metadata_epoch:
                self.violated(
                    first_us,
                    f"{row.process} fetched {row.topic}-{row.partition} (operation {first}) with metadata epoch {had}; "
                    f"the offset from operation {row.index} has epoch {row.metadata_epoch}",
                )


def learnt(history: History) -> Iterator[CommitRow]:
    """Yields the rows that bring a consumer an offset, from its coordinator or from outside."""
    return (row for row in history.commits if row.kind in ("fetched", "loaded") and row.error is None)
