"""unrequested-partition: an answer holds only partitions that its fetcher reads at that time.

A forgotten partition counts as read until the forget is acknowledged.
"""

from chaos.checks.check import Check, History
from chaos.checks.values import Place


class UnrequestedPartition(Check):
    guarantee = "unrequested-partition"

    def end(self, history: History) -> None:
        operations = history.operation_of()
        spans: dict[tuple[str, Place], list[tuple[int, int]]] = {}
        for row in history.assignments:
            spans.setdefault((row.process, (row.topic, row.partition)), []).append((row.from_us, row.until_us))
        for position in history.positions:
            operation = operations.get((position.process, position.index))
            if operation is None or operation.f != "fetch":
                continue
            where = (position.topic, position.partition)
            at_us = operation.complete_us
            if not any(
                start <= at_us and operation.invoke_us <= until
                for start, until in spans.get((position.process, where), [])
            ):
                self.violated(
                    at_us,
                    f"{position.process} was answered about {position.topic}-{position.partition}, which it does not "
                    f"read (operation {position.index})",
                )
