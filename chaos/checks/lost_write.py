from chaos.checks.check import Check
from chaos.checks.history import History, expanded, named, place
from chaos.checks.written import acknowledged, deleted, is_placed, last_read, may_be_deleted, never_read, sent_us


class LostWrite(Check):
    """lost-write: no acknowledged value is overtaken by reads without ever being read itself, and each is there at the
    end.

    A value is not there if the partition does not exist any more, or if its log ends below the value's offset, whoever
    may have read it before. Deletions and cleaners take records at the start of a log or in its middle, never at its
    end. It is not there either if the log begins above the value's offset, and retention does not explain that
    (``written.may_be_deleted``). This is judged only where the broker promises that acknowledged writes survive
    (``History.writes_promised``).
    """

    guarantee = "lost-write"

    def end(self, history: History) -> None:
        self.looked_at += acknowledged(history)
        self._beyond_the_end(history)
        self._below_the_start(history)
        last = last_read(history)
        for run, value in never_read(history):
            overtaken_by = last.get(place(run), -1)
            if value.offset <= overtaken_by:
                self.violated(
                    history.ended_us(run),
                    f"{named(run, value)} was acknowledged, never read, and overtaken by reads up to {overtaken_by}",
                )

    def _beyond_the_end(self, history: History) -> None:
        ends = {place(row): row for row in history.ends}
        for run in history.runs if history.writes_promised else ():
            end = ends.get(place(run))
            if run.kind != "send" or end is None or not is_placed(run, history):
                continue
            gone = [value for value in expanded(run) if value.offset >= end.high_watermark]
            if gone:
                why = f"does not exist any more ({end.error})" if end.error else f"ends at offset {end.high_watermark}"
                self.violated(history.ended_us(run), f"{named(run, gone[0])} was acknowledged, and the partition {why}")

    def _below_the_start(self, history: History) -> None:
        for run in history.runs if history.writes_promised and deleted(history) else ():
            end = deleted(history).get(place(run))
            if run.kind != "send" or end is None or not is_placed(run, history):
                continue
            if run.first_offset < end.log_start_offset and not may_be_deleted(end, sent_us(run, history), history):
                first = next(expanded(run))
                self.violated(
                    history.ended_us(run),
                    f"{named(run, first)} was acknowledged, and the partition begins at offset {end.log_start_offset}. "
                    f"retention.ms {end.retention_ms} and retention.bytes {end.retention_bytes} do not explain that",
                )
