"""Plays the cases of ``crucible client`` on the bundled clients, each in a command of its own.

The client that was not played for longest comes first. One that cannot be built here is reported and skipped. What a
client fails does not make a night red, but a case that failed by itself does.
"""

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from campaigns.nights import processes
from campaigns.nights.night import Work, in_turn
from reports.night import CLIENT, CellRow
from reports.verdict import Outcome

MIN_S: Final = 180.0
"""All cases of one client take about two minutes, and more where the client must be fetched and built."""
PASS: Final = "pass"
OUR_ERROR: Final = "our error"
"""The verdict on a case that failed by itself, as --json writes it."""
ADAPTERS: Final = processes.ROOT / "crucible_kafka" / "clients" / "adapters"
"""Has a folder for each bundled client. The command line is not imported here: it imports this room."""


def play(work: Work, until: float) -> tuple[Outcome, str]:
    """Play until the time is over."""
    failed, missing = [], []
    for name in in_turn(bundled_clients(), work.tried_before("clients"), work.turn):
        if time.monotonic() + MIN_S > until:
            break
        work.try_(name)
        path = work.folder / "clients" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        done = processes.run(
            processes.crucible("client", name, "--json", str(path)),
            until,
            work.folder / "logs" / f"client-{name}.log",
            partial(work.beat, f"client: {name}"),
            work.environment,
        )
        if done.code == processes.OVER:
            work.tell(f"client: {name} had no time to end")
            break
        if not path.exists():
            missing.append(f"{name} was omitted: {done.last_line}")
            work.tell(missing[-1])
            continue
        cells = list(cells_of(name, json.loads(path.read_text(encoding="utf-8"))))
        work.add(*cells)
        failed += [f"{name}: {cell.case_id} failed by itself" for cell in cells if cell.outcome == OUR_ERROR]
        work.tell(f"client: {name}: {sum(cell.outcome == PASS for cell in cells)} cases passed")
    return Outcome.FAILED if failed else Outcome.PASSED, "; ".join(failed + missing)


def bundled_clients() -> list[str]:
    """Return the names by which ``crucible client`` knows its bundled clients."""
    return sorted(path.parent.name.replace("_", "-") for path in ADAPTERS.glob("*/adapter.toml"))


def cells_of(name: str, document: Mapping[str, Any]) -> Iterator[CellRow]:
    """Yield the outcome of each case in the ``--json`` document of a client."""
    for case in document["cases"]:
        section = case["id"].partition("/")[0]
        yield CellRow(f"{CLIENT}{name}", case["id"], section, case["level"], case["verdict"])
