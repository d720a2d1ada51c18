"""Progress of a live run, as a table or as plain lines.

Only ``live_run.py`` imports this module, when a run begins.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crucible_kafka.terminal import progress

if TYPE_CHECKING:
    from rich.table import Table

    from chaos.live.runner import RunView, Show

PLAIN_EVERY_S = 10.0
"""The interval of the lines of figures where there is no terminal. It keeps a run's log short."""


@contextmanager
def shown_live() -> "Iterator[Show]":
    """Yield what a run calls once a second."""
    if not sys.stderr.isatty():
        yield _plainly(progress)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as table:
        yield lambda view: table.update(drawn(view), refresh=True)


def _plainly(say: Callable[[str], None]) -> "Show":
    """Return a function that says a line each ten seconds of the load, and each broken guarantee at once."""
    printed_s, named = float("-inf"), set[str]()

    def show(view: "RunView") -> None:
        nonlocal printed_s
        for name in view.broken:
            if name not in named:
                named.add(name)
                say(f"BROKEN, as clients or nodes see it: {name}")
        if view.report and 0 <= view.load_s <= view.whole_load_s and view.load_s - printed_s >= PLAIN_EVERY_S:
            printed_s = view.load_s
            say(" | ".join(f"{what}: {value}" for what, value in words(view) if what != "broken"))

    return show


def words(view: "RunView") -> list[tuple[str, str]]:
    """Return what is shown, as names and values. A figure that does not exist yet is omitted."""
    loads = 0 <= view.load_s <= view.whole_load_s
    rows = [("phase", f"{view.phase}, {view.load_s:.0f} of {view.whole_load_s:g} s" if loads else view.phase)]
    report = view.report
    if report:
        rows += [
            ("offered", f"{report['offered_per_s']:,} operations/s"),
            ("completed", f"{report['completed_per_s']:,} operations/s, {report['failed']:,} failed so far"),
            ("records", f"{report['acked_records']:,} acknowledged, {report['read_records']:,} read"),
            ("p99, slowest worker", f"produce {_ms(report, 'produce')}, fetch {_ms(report, 'fetch')}"),
        ]
    rows.append(("faults", _faults(view)))
    rows.append(("broken", ", ".join(view.broken) or "nothing that clients or nodes have seen"))
    return rows


def _faults(view: "RunView") -> str:
    now = f"{', '.join(dict.fromkeys(view.under_way))} under way, " if view.under_way else ""
    following = f"{view.next_fault[0]} in {view.next_fault[1]:.0f} s" if view.next_fault else "none at a time is left"
    return f"{now}{view.fired:,} hits; next: {following}"


def _ms(report: Mapping[str, int], operation: str) -> str:
    p99_us = report[f"worst_{operation}_p99_us"]
    return f"{p99_us / 1000:,.1f} ms" if p99_us else "none"


def drawn(view: "RunView") -> "Table":
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for what, value in words(view):
        style = "bold red" if what == "broken" and view.broken else ""
        table.add_row(f"[dim]{what}[/dim]", value, style=style)
    return table
