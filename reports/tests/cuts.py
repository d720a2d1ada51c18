"""A history as it is while its run goes on: what each process has recorded up to a moment of its own."""

from collections.abc import Callable

from reports.tests.history import History, Row, int_of

Moment = Callable[[str], int]
"""Up to when a process has recorded, by its name."""

_AT_THE_END = ("ends", "target_runs", "faults", "frames", "frame_lines", "latency", "load", "broker", "fetch_costs")
_TIMES = {
    "operations": "complete_us",
    "commits": "at_us",
    "metadata_epochs": "at_us",
    "resets": "at_us",
    "copies": "at_us",
    "memberships": "at_us",
    "transactions": "until_us",
    "views": "at_us",
    "assignments": "until_us",
}
"""When a row is recorded. All other rows are recorded with their operation."""


def part_of(history: History, moment: Moment, traced_us: int) -> History:
    """Return the part of the history that is written by then. The nodes have traced up to ``traced_us``."""
    part = History(history.shape, history.seed, config=history.config)
    part.tables["operations"] = [row for row in history.tables["operations"] if _is_known(row, "complete_us", moment)]
    ended = {(row["process"], row["index"]) for row in part.tables["operations"]}
    for name, rows in history.tables.items():
        if name == "trace":
            part.tables[name] = [row for row in rows if int_of(row, "at_us") <= traced_us]
        elif name in _TIMES:
            part.tables[name] = [row for row in rows if _is_known(row, _TIMES[name], moment)]
        elif name not in _AT_THE_END:
            part.tables[name] = [row for row in rows if (row["process"], row["index"]) in ended]
    return part


def _is_known(row: Row, time: str, moment: Moment) -> bool:
    return int_of(row, time) <= moment(str(row["process"]))


def end_us(history: History) -> int:
    return max(int_of(row, "complete_us") for row in history.tables["operations"])
