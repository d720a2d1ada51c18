from chaos.checks.check import Check
from chaos.checks.history import History, place
from reports.rows import END_OF_RUN_US


class FetchGap(Check):
    """fetch-gap: once all is quiet, each fetcher's position in each of its partitions is the high watermark.

    A fetcher that was told no offset, and was answered nothing, stands at the log's start. One that asks several nodes
    at once stands where the answer that came last left it (KIP-392). In a partition that does not exist any more nobody
    stands anywhere (lost-write).
    """

    guarantee = "fetch-gap"

    def end(self, history: History) -> None:
        ends = {place(row): row for row in history.ends if row.error is None}
        lasting = [row for row in history.assignments if row.until_us == END_OF_RUN_US]
        positions = {(row.process, place(row)): row.from_offset for row in lasting}
        last = {(row.process, place(row)): (row.from_us, -1) for row in lasting}
        for position, operation in history.with_operations(history.positions, "fetch"):
            key, answered = (position.process, place(position)), (operation.complete_us, position.index)
            if key in positions and answered >= last[key]:
                last[key] = answered
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
