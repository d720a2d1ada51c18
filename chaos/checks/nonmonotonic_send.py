from chaos.checks.check import Check
from chaos.checks.history import History, Place, place


class NonmonotonicSend(Check):
    """nonmonotonic-send: a producer's successive acknowledged sends to one partition stand at rising offsets.

    This is not judged after a power loss without a flush policy, which may take back what was acknowledged.
    """

    guarantee = "nonmonotonic-send"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        last: dict[tuple[str, Place], int] = {}
        # Physical: an answer without an offset (-1, DUPLICATE_SEQUENCE_NUMBER) does not say where the batch stands.
        sends = [run for run in history.runs if run.kind == "send" and run.first_offset >= 0]
        # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
        sends = [run for run in sends if run.process not in history.unpromised]
        sends.sort(key=lambda run: (run.process, run.index, run.position))
        for run in sends:
            self.looked_at += 1
            key = (run.process, place(run))
            if run.first_offset <= last.get(key, -1):
                self.violated(
                    history.ended_us(run),
                    f"{run.process}: {run.topic}-{run.partition} was written at {run.first_offset} after {last[key]}",
                )
            last[key] = run.first_offset + run.count - 1
