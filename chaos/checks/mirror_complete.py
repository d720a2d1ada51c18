from bench.fleet.behaviours.piped import WRITER_SUFFIX
from chaos.checks.check import Check
from chaos.checks.history import History, Place, expanded, grouped, named, place
from chaos.checks.reads import moved_forward


class MirrorComplete(Check):
    """mirror-complete: what the source holds at the end, its mirror's target holds too.

    The check judges partitions that were read to their end in both clusters. It leaves out offsets over which a reset
    moved the mirror's position forward (its reset policy is ``latest``, or records were deleted before it came to
    them). The target may hold a record twice, since the promise is at least once; that is only counted.
    """

    guarantee = "mirror-complete"

    def end(self, history: History) -> None:
        if not history.target_runs:
            return
        copied: dict[Place, set[tuple[str, int]]] = {}
        ended: dict[Place, None] = {}
        for row in history.target_runs:
            self.looked_at += row.count
            values = copied.setdefault(place(row), set())
            values.update((row.writer, row.first_sequence + step) for step in range(row.count))
            if not row.count:
                ended[place(row)] = None
        mirrors = {row.process.removesuffix(WRITER_SUFFIX) for row in history.copies}
        moved = grouped((row for row in moved_forward(history) if row.process in mirrors), place)
        for run, operation in history.with_operations(history.runs, "final_read"):
            if place(run) not in ended:
                continue  # Physical: nobody knows what the target holds beyond what was read.
            jumps = [(row.from_offset, row.to_offset) for row in moved.get(place(run), ())]
            for value in expanded(run):
                if any(first <= value.offset < end for first, end in jumps):
                    continue  # Kafka: auto.offset.reset leaves out what lies between.
                if value.writer and (value.writer, value.sequence) not in copied[place(run)]:
                    self.violated(
                        operation.complete_us,
                        f"{named(run, value)} is not in the cluster that its topic was copied to",
                    )
