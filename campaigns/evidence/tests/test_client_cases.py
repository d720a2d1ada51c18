"""Cells of clients, and the page client x case."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from campaigns.evidence import client_cases
from campaigns.evidence.client_cases import ClientCell, ClientNotPlayed, PlayedClient
from campaigns.evidence.plays import Run

CASE = {"level": "MUST", "words": "A response is lost.", "source": "KIP-227"}
DATE = ("2026-01-01", "2 cores")


def cell(*verdicts: str, reason: str = "") -> ClientCell:
    return ClientCell("MUST", "A response is lost.", "KIP-227", verdicts, reason)


@pytest.mark.parametrize(
    ("verdicts", "mark"),
    [
        (("pass", "pass", "pass"), ""),
        (("fail", "fail", "fail"), "**fails**"),
        (("differs", "differs", "differs"), "differs"),
        (("not supported", "not supported", "not supported"), "n/a"),
        (("fail", "pass", "fail"), "unstable, 2/3"),
        (("fail", "fail", "not shown"), "–"),
        (("pass", "our error", "pass"), "–"),
        (("adapter failed", "adapter failed", "adapter failed"), "–"),
    ],
)
def test_cell_is_red_only_if_each_play_was(verdicts: tuple[str, ...], mark: str) -> None:
    assert cell(*verdicts).mark == mark
    assert cell(*verdicts).is_red == (mark in ("**fails**", "differs"))


def run_that_writes(*verdicts: str) -> Run:
    """Return a ``crucible client`` whose plays have these verdicts on one case, one play after the other."""
    coming = iter(verdicts)

    def run(words: Sequence[str], _limit_s: float) -> tuple[int, str]:
        verdict = next(coming)
        if verdict == "no client":
            return 2, "building ...\ncrucible: it needs go, which is missing: install it."
        outcome = {**CASE, "verdict": verdict, "reason": "it waits" if verdict == "fail" else ""}
        cases = [{**outcome, "id": "sessions/lost"}, {**outcome, "id": "limits/torn"}]
        client = {"name": "kafka-python", "version": "3.0.12", "language": "python"}
        Path(words[-1]).write_text(json.dumps({"client": client, "cases": cases}))
        return 1, ""

    return run


def test_three_plays_are_kept_and_shown_with_the_command_that_repeats(tmp_path: Path) -> None:
    said: list[str] = []
    client_cases.keep(client_cases.play("kafka-python", run_that_writes("fail", "fail", "fail"), said.append), tmp_path)
    client_cases.keep(
        PlayedClient("own", "1", "python", *DATE, {"sessions/lost": cell("pass", "pass", "pass")}), tmp_path
    )
    (page,) = client_cases.write(tmp_path)
    text = page.read_text()
    assert "| lost | MUST | **fails** |  |" in text
    assert "`./crucible client kafka-python --case sessions/lost`: A response is lost. it waits" in text
    assert "## own 1: 0 red" in text
    assert said[-1] == "kafka-python: play 3 of 3: 2 fail"


def test_hostile_responses_are_neither_kept_nor_shown(tmp_path: Path) -> None:
    kept = client_cases.keep(client_cases.play("own", run_that_writes("fail", "fail", "fail"), print), tmp_path)
    (page,) = client_cases.write(tmp_path)
    assert "limits/" not in kept.read_text() + page.read_text()


def test_client_that_cannot_be_built_is_named_in_one_sentence() -> None:
    with pytest.raises(ClientNotPlayed, match=r"^franz-go: it needs go, which is missing: install it\.$"):
        client_cases.play("franz-go", run_that_writes("no client"), print)


def test_nothing_is_written_without_a_client(tmp_path: Path) -> None:
    assert client_cases.write(tmp_path) == []


def test_papers_name_the_number_of_defects_and_of_clients() -> None:
    root = Path(__file__).resolve().parents[3]
    table = (root / "docs" / "evidence" / "clients.md").read_text().split("\n## ")[0]
    rows = re.findall(r"^\| (.*? \d.*?) \| `(.*)$", table, re.MULTILINE)
    clients = {name for row, _ in rows for name in re.findall(r"([@a-z]\S*) \d", row)}
    assert sum("a documented default" in rest for _, rest in rows) == 1
    assert "kafka-go" in clients
    defects, released = f"{len(rows) - 1} defects and a harmful default", f"{len(clients)} released clients"
    assert f"| {released} | [{defects}](docs/evidence/clients.md)" in (root / "README.md").read_text()
    assert f"| {defects} of {released}." in (root / "docs" / "evidence" / "README.md").read_text()
