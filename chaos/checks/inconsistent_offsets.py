"""inconsistent-offsets: acknowledged sends and reads never show two values at one offset.

After a power loss without a flush policy another record may be written at an offset, so this is not judged then. A
damaged value is never right: a batch has a checksum.
"""

from chaos.checks.check import Check, History
from chaos.checks.values import Place, expanded, place


class InconsistentOffsets(Check):
    guarantee = "inconsistent-offsets"

    def end(self, history: History) -> None:
        found: dict[tuple[Place, int], tuple[str, int]] = {}
        for run in history.runs:
            if not run.valid or not run.writer:
                self.violated(
                    0, f"{run.topic}-{run.partition} offset {run.first_offset}: {run.process} saw a damaged value"
                )
            if not history.writes_promised:
                continue  # Physical: the only replica lost its power, and nothing had been synced.
            # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
            if run.first_offset < 0 or (run.kind == "send" and run.process in history.unpromised):
                continue
            for value in expanded(run):
                key = (place(run), value.offset)
                seen = found.setdefault(key, (value.writer, value.sequence))
                if seen != (value.writer, value.sequence):
                    self.violated(
                        0,
                        f"{run.topic}-{run.partition} offset {value.offset}: {seen[0]}/{seen[1]}, and "
                        f"{value.writer}/{value.sequence} for {run.process}",
                    )
