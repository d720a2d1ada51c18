"""fetch-gap: once all is quiet, each fetcher's position in each of its partitions is the high watermark.

A fetcher that was told no offset, and was answered nothing, stands at the log's start. A member asks several nodes at
once, so its answers count in the order in which they came.
"""

from chaos.checks.check import Check, History
from chaos.checks.values import place
from reports.rows import END_OF_RUN_US


class FetchGap(Check):
    guarantee = "fetch-gap"

    def end(self, history: History) -> None:
        ends = {place(row): row for row in history.ends}
        lasting = [row for row in history.assignments if row.until_us == END_OF_RUN_US]
        positions = {(row.process, place(row)): row.from_offset for row in lasting}
        begun_us = {(row.process, place(row)): row.from_us for row in lasting}
        last = {key: (from_us, -1) for key, from_us in begun_us.items()}
        for position in history.positions:
            key = (position.process, place(position))
            operation = history.operation_of.get((position.process, position.index))
            if key not in positions or operation is None:
                continue
            came = (operation.complete_us, position.index)
            if came >= last[key]:
                last[key] = came
                positions[key] = position.next_offset
        for (process, where), offset in positions.items():
            end = ends.get(where)  # Physical: of a partition that nobody could ask at the end nothing is known.
            if end is None:
                continue
            self.looked_at += 1
            stands_at = offset if offset >= 0 else end.log_start_offset
            if stands_at != end.high_watermark:
                self.violated(
                    end.end_us,
                    f"{process} stands at offset {stands_at} of {where[0]}-{where[1]}, whose high watermark is "
                    f"{end.high_watermark}",
                )
