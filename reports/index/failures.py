"""Open failures in words: their age, their frequency, and the commands that repeat them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from reports.index.matrix import percent
from reports.index.nights import NightSummary
from reports.job_rows import Row, Rows
from reports.statistics.confidence import wilson


@dataclass(frozen=True, slots=True)
class OpenFailure:
    """A failure whose seed has not passed again."""

    row: Row
    """A row of the job ``still_open_failures``."""
    age: str
    seen: str
    live: str
    faults: tuple[str, ...]
    regression: str
    """The address of the candidate file."""
    is_gone: bool
    """Whether later nights played the scenario often enough without the violation to exclude the old rate, so that it
    is probably fixed."""


def open_failures(rows: Rows, nights: Sequence[NightSummary], file: Callable[[str, str], str]) -> list[OpenFailure]:
    """The oldest is first, and those that are probably fixed last. ``file`` gives the address of a file of a night."""
    return sorted((_open_failure(row, nights, file) for row in rows), key=lambda failure: failure.is_gone)


def _open_failure(row: Row, nights: Sequence[NightSummary], file: Callable[[str, str], str]) -> OpenFailure:
    return OpenFailure(
        row,
        age=_age(row["first_night"], nights),
        seen=_seen(row),
        live=_live(row),
        faults=tuple(line for line in row["faults"].splitlines() if line.strip()),
        regression=file(row["last_night"], row["regression"]) if row["regression"] else "",
        is_gone=_is_gone(row),
    )


def _age(first_night: str, nights: Sequence[NightSummary]) -> str:
    first = datetime.strptime(first_night, "%Y%m%d-%H%M%S").date()
    days = (nights[-1].started.date() - first).days
    return f"{_many(sum(summary.night.night >= first_night for summary in nights), 'night')}, {_many(days, 'day')}"


def _seen(row: Row) -> str:
    text = f"In {_many(row['nights'], 'night')}, with {_many(row['seeds'], 'seed')}."
    if row["plays_since"]:
        text += (
            f" Since then {row['violations_since']:,} of {_many(row['plays_since'], 'play')} of the scenario broke it."
        )
    if row["still_breaks"]:
        text += " Its seed was played again, and broke it again."
    return text


def _is_gone(row: Row) -> bool:
    """The intervals of the rates before and since do not touch."""
    if not row["violations"] or row["violations_since"] or row["still_breaks"]:
        return False
    return wilson(0, row["plays_since"])[1] < wilson(row["violations"], row["plays"])[0]


def _live(row: Row) -> str:
    if not row["live_plays"]:
        return "not played with real processes"
    low, high = wilson(row["live_reds"], row["live_plays"])
    return f"{row['live_reds']} of {row['live_plays']} red: a rate from {percent(low)} to {percent(high)}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
