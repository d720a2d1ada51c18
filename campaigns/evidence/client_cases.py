"""Plays ``crucible client`` on clients three times, keeps what came of it, and writes the page client x case.

The command line is not imported here (it imports this room): each play is a command of its own, and its ``--json`` is
what is kept.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from campaigns.evidence.kept import machine
from campaigns.evidence.plays import PLAYS, Run

DATA: Final = Path("data") / "clients"
PAGE: Final = "client-cases.md"
PLAY_LIMIT_S: Final = 1800.0
"""The time that one play of all cases may take, with the build of the client."""
VERDICTS: Final = ("pass", "fail", "differs", "not supported")
"""Verdicts about a client. After any other one the play showed nothing."""
WITHHELD: Final = ("limits",)
"""Sections that are neither kept nor shown: what a client does with hostile responses may be a security hole."""
MARKS: Final = {"pass": "", "fail": "**fails**", "differs": "differs", "not supported": "n/a"}
NOTHING: Final = "–"
UNPLAYED: Final = "·"
_MADE: Final = "<!-- Made by ./crucible evidence --pages from data/clients. Edit client_cases.py instead. -->\n\n"


class ClientNotPlayed(Exception):  # noqa: N818 - says what happened
    """A client could not be built or met. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class ClientCell:
    """The result of several plays of one case on one client."""

    level: str
    words: str
    source: str
    verdicts: tuple[str, ...]
    """One for each play."""
    reason: str
    """Of the last play in which the client failed or differed."""

    @property
    def mark(self) -> str:
        """The cell of the matrix: the common verdict, or how many plays were red."""
        if any(verdict not in VERDICTS for verdict in self.verdicts):
            return NOTHING
        if len({*self.verdicts}) == 1:
            return MARKS[self.verdicts[0]]
        red = sum(verdict in ("fail", "differs") for verdict in self.verdicts)
        return f"unstable, {red}/{len(self.verdicts)}"

    @property
    def is_red(self) -> bool:
        """Return whether each play was red."""
        return all(verdict in ("fail", "differs") for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class PlayedClient:
    """A client with its cells by the ID of the case."""

    name: str
    """As ``crucible client`` takes it."""
    version: str
    language: str
    date: str
    machine: str
    cases: Mapping[str, ClientCell]


def play(name: str, run: Run, say: Callable[[str], None], plays: int = PLAYS) -> PlayedClient:
    """Play all cases ``plays`` times. Raise ClientNotPlayed."""
    documents: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.json"
        for number in range(1, plays + 1):
            path.unlink(missing_ok=True)
            _, output = run(["client", name, "--json", str(path)], PLAY_LIMIT_S)
            if not path.exists():
                last = (output.strip().splitlines() or ["it wrote nothing"])[-1]
                raise ClientNotPlayed(f"{name}: {last.removeprefix('crucible: ')}")
            documents.append(json.loads(path.read_text(encoding="utf-8")))
            counted = Counter(each["verdict"] for each in documents[-1]["cases"])
            counts = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
            say(f"{name}: play {number} of {plays}: {counts}")
    client = documents[-1]["client"]
    today = datetime.now(UTC).date().isoformat()
    return PlayedClient(name, client["version"], client["language"], today, machine(), cells_of(documents))


def cells_of(documents: Sequence[Mapping[str, Any]]) -> dict[str, ClientCell]:
    """Return the cells of what the plays wrote. A case that one of them lacks has no cell, nor has one that is
    withheld."""
    plays = [{case["id"]: case for case in document["cases"]} for document in documents]
    cells: dict[str, ClientCell] = {}
    for case_id, case in plays[-1].items():
        outcomes = [each[case_id] for each in plays if case_id in each]
        if len(outcomes) == len(plays) and case_id.partition("/")[0] not in WITHHELD:
            reasons = [outcome["reason"] for outcome in outcomes if outcome["verdict"] in ("fail", "differs")]
            verdicts = tuple(outcome["verdict"] for outcome in outcomes)
            cells[case_id] = ClientCell(case["level"], case["words"], case["source"], verdicts, (reasons or [""])[-1])
    return cells


def keep(client: PlayedClient, folder: Path) -> Path:
    """Write what was seen below ``folder``, that of the pages, and return the file."""
    path = folder / DATA / f"{client.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(client), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def everything(folder: Path) -> list[PlayedClient]:
    """Return all clients that were kept, by name."""
    return [_read(path) for path in sorted((folder / DATA).glob("*.json"))]


def _read(path: Path) -> PlayedClient:
    content = json.loads(path.read_text(encoding="utf-8"))
    cases = {
        name: ClientCell(**{**values, "verdicts": tuple(values["verdicts"])})
        for name, values in content.pop("cases").items()
    }
    return PlayedClient(**content, cases=cases)


def write(folder: Path) -> list[Path]:
    """Write the page below ``folder`` from what is kept there, and return it. Without any client there is none."""
    clients = everything(folder)
    if not clients:
        return []
    path = folder / PAGE
    path.write_text(_MADE + page(clients), encoding="utf-8")
    return [path]


def page(clients: Sequence[PlayedClient]) -> str:
    """Return the matrix of clients x cases, and each red cell with its reason and the command that shows it."""
    cases = {case_id: cell for client in clients for case_id, cell in client.cases.items()}
    lines = [
        "# Client x case",
        "",
        f"`./crucible client CLIENT`, played {PLAYS} times. A blank cell passes, n/a is a case about what the "
        "client does not have, a dash shows nothing (the fault did not fire, or the adapter or the case failed), a dot "
        "was not played, and *unstable* says how many plays were red. **fails** is a MUST, *differs* a SHOULD. "
        "A red cell says what this version does in this situation, and nothing about the rest of the client. "
        "Hostile responses (section limits) are left out: what a client does with them goes to its authors first. "
        "[clients.md](clients.md) explains some of them by lines of the client's source.",
        "",
        "| client | version | language | passes | fails | differs | unstable | not judged | n/a | seen |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_counts(client, cases) for client in clients),
        "",
    ]
    heads = " | ".join(client.name for client in clients)
    for section, ids in groupby(sorted(cases), key=lambda case_id: case_id.partition("/")[0]):
        lines += [f"## {section}", "", f"| case | level | {heads} |", "| --- | --- |" + " --- |" * len(clients)]
        for case_id in ids:
            marks = " | ".join(_mark(client, case_id) for client in clients)
            lines.append(f"| {case_id.partition('/')[2]} | {cases[case_id].level} | {marks} |")
        lines.append("")
    for client in clients:
        lines += _red_cells(client)
    return "\n".join(lines)


def _mark(client: PlayedClient, case_id: str) -> str:
    cell = client.cases.get(case_id)
    return UNPLAYED if cell is None else cell.mark


def _counts(client: PlayedClient, cases: Mapping[str, ClientCell]) -> str:
    marks = Counter(_mark(client, case_id) for case_id in cases)
    unstable = sum(count for mark, count in marks.items() if mark.startswith("unstable"))
    counts = (
        marks[""],
        marks[MARKS["fail"]],
        marks["differs"],
        unstable,
        marks[NOTHING] + marks[UNPLAYED],
        marks["n/a"],
    )
    numbers = " | ".join(map(str, counts))
    return f"| {client.name} | {client.version} | {client.language} | {numbers} | {client.date}, {client.machine} |"


def _red_cells(client: PlayedClient) -> Iterator[str]:
    red = {case_id: cell for case_id, cell in sorted(client.cases.items()) if cell.is_red}
    yield f"## {client.name} {client.version}: {len(red)} red"
    yield ""
    for case_id, cell in red.items():
        yield f"- `./crucible client {client.name} --case {case_id}`: {_plain(cell.words)} {_plain(cell.reason)}"
        yield f"  ({_plain(cell.source)})"
    yield ""


def _plain(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")
