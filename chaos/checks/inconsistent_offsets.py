from chaos.checks.check import Check
from chaos.checks.history import History, Place, expanded, place
from reports.rows import RunRow


class InconsistentOffsets(Check):
    """inconsistent-offsets: acknowledged sends and reads never show two values at one offset.

    After a power loss without a flush policy another record may be written at an offset, so this is not judged then.
    Damaged values are those of corrupt-value.
    """

    guarantee = "inconsistent-offsets"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        found: dict[tuple[Place, int], RunRow] = {}
        for run in history.runs:
            self.looked_at += run.kind == "read"
            # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
            unpromised = run.kind == "send" and run.process in history.unpromised
            if not run.valid or not run.writer or run.first_offset < 0 or unpromised:
                continue
            for value in expanded(run):
                other = found.setdefault((place(run), value.offset), run)
                sequence = other.first_sequence + value.offset - other.first_offset
                if (other.writer, sequence) != (value.writer, value.sequence):
                    self.violated(
                        max(history.ended_us(other), history.ended_us(run)),
                        f"{run.topic}-{run.partition} offset {value.offset}: {other.writer}/{sequence}, and "
                        f"{value.writer}/{value.sequence} for {run.process}",
                    )
