from chaos.checks.check import Check
from chaos.checks.history import History, grouped, place


class UnrequestedPartition(Check):
    """unrequested-partition: an answer holds only partitions that its fetcher reads at that time.

    A forgotten partition counts as read until the forget is acknowledged.
    """

    guarantee = "unrequested-partition"

    def end(self, history: History) -> None:
        assigned = grouped(history.assignments, lambda row: (row.process, place(row)))
        # Physical: the fetcher learns only from the answer that its forget has arrived (F-12). It has one fetch at a
        # time on its way, so what it sends in the microsecond of that answer it sends after it.
        for position, operation in history.with_operations(history.positions, "fetch"):
            self.looked_at += 1
            if not any(
                row.from_us <= operation.complete_us and operation.invoke_us < row.until_us
                for row in assigned.get((position.process, place(position)), ())
            ):
                self.violated(
                    operation.complete_us,
                    f"{position.process} was answered about {position.topic}-{position.partition}, which it does not "
                    f"read (operation {position.index})",
                )
