from chaos.checks.check import Check
from chaos.checks.history import History, Place, grouped, once, place
from chaos.checks.keyed import NEVER_US, UNKNOWN_OFFSET, KeyedWrite, by_key, keyed_writes, newest_below
from reports.rows import ViewRow


class MaterializedView(Check):
    """materialized-view: a reader of a whole compacted topic holds of each key what the committed writes leave of it.

    What it holds when it has read up to a position is the fold of the writes below: the newest value of each key, and
    nothing where the newest is a tombstone. A key is not judged while a newer write may stand beyond the position,
    because then a cleaner may have taken what it supersedes.

    A reader that was told the tombstone horizon has begun again where it may have missed tombstones (H-3 to H-7). So it
    holds nothing that was deleted, however late it came.
    """

    guarantee = "materialized-view"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        ends = {place(row): row.high_watermark for row in history.ends}
        keys = grouped(by_key(history), lambda each: each[0])
        for rows in grouped(history.views, lambda row: (row.process, row.from_us, place(row))).values():
            head, held = rows[0], {row.key: row for row in rows if row.key}
            self.looked_at += 1
            at_end = head.position >= ends.get(place(head), NEVER_US)
            for where, key in keys.get(place(head), ()):
                writes = by_key(history)[where, key]
                if not _may_be_superseded(writes, head, at_end):
                    self._judge(history, head, held.get(key), writes)

    def _judge(self, history: History, head: ViewRow, held: ViewRow | None, writes: list[KeyedWrite]) -> None:
        newest = newest_below(writes, head.position)
        if held is None:
            wrong = newest is not None and not newest.row.is_tombstone and not _is_hidden(writes, newest, head)
            story = "lacks"
        else:
            told = keyed_writes(history).get((place(held), held.writer, held.sequence))
            aborted = head.isolation == 1 and told is not None and told.fate == "fail"
            older = newest is not None and held.offset < newest.offset and not _passed_late(history, head, newest)
            wrong, story = aborted or older, f"holds {held.writer}/{held.sequence} at offset {held.offset} for"
        if wrong:
            said = "nothing" if newest is None else f"{_named(newest)} at offset {newest.offset}"
            self.violated(
                head.at_us,
                f"{head.process} read {head.topic}-{head.partition} up to {head.position} and {story} key "
                f"{writes[0].row.key}; the newest committed is {said}",
            )


def _named(write: KeyedWrite) -> str:
    kind = "tombstone " if write.row.is_tombstone else ""
    return f"{kind}{write.row.process}/{write.row.sequence}"


def _may_be_superseded(writes: list[KeyedWrite], head: ViewRow, at_end: bool) -> bool:
    """X-11: a cleaner takes what a newer record supersedes, also one that this reader has not reached."""
    return any(
        each.fate != "fail"
        and each.from_us <= head.at_us
        and each.offset >= head.position
        and not (at_end and each.offset == UNKNOWN_OFFSET)
        for each in writes
    )


def _is_hidden(writes: list[KeyedWrite], newest: KeyedWrite, head: ViewRow) -> bool:
    """A tombstone may have taken effect for this reader. Physical: nobody was told whether it was committed. Kafka:
    read_uncommitted shows tombstones of transactions that are aborted, too."""
    return any(
        each.row.is_tombstone
        and each.offset > newest.offset
        and (each.fate == "info" or (each.fate == "fail" and head.isolation == 0))
        for each in writes
    )


def _passed_late(history: History, head: ViewRow, newest: KeyedWrite) -> bool:
    """Kafka, ``delete.retention.ms``: a reader that takes longer to get behind a tombstone may never see it."""
    if (head.process, place(head)) in _told_the_horizon(history):
        return False
    answers = _answers(history).get((head.process, place(head)), [])
    passed = (at_us for at_us, offset in answers if at_us >= head.from_us and offset > newest.offset)
    return next(passed, head.at_us) >= newest.removable_us


@once
def _told_the_horizon(history: History) -> set[tuple[str, Place]]:
    return {(row.process, place(row)) for row in history.positions if row.tombstone_horizon >= 0}


@once
def _answers(history: History) -> dict[tuple[str, Place], list[tuple[int, int]]]:
    """Returns when each answer came that moved a reader, and where it stood then, in the order of time."""
    found: dict[tuple[str, Place], list[tuple[int, int]]] = {}
    for row in history.positions:
        operation = history.operation_of.get((row.process, row.index))
        if operation is not None and operation.type == "ok":
            found.setdefault((row.process, place(row)), []).append((operation.complete_us, row.next_offset))
    return {key: sorted(answers) for key, answers in found.items()}
