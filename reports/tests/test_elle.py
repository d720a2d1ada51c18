"""The export for Elle: what its parser and its list-append checker need of a history, and what is read from ours."""

import io
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from crucible_kafka.commands.reports import export
from reports import elle
from reports.elle import exported
from reports.errors import SetupError
from reports.tests.history import History
from reports.tests.planted_cycles import LOG, UNCOMMITTED, Circles, Part, planted, serial

_TOKEN = re.compile(r"[\[\]{}]|:[a-z]+|-?\d+|nil")
_CLOSED_BY = {"[": "]", "{": "}"}


def parsed(text: str) -> list[dict[str, Any]]:
    """Read the part of EDN that is written: a map a line, of keywords, numbers, nil and vectors, and nothing else."""
    maps = []
    for line in text.splitlines():
        if not line.startswith(";;"):
            assert not _TOKEN.sub("", line).strip(", "), line
            tokens = _TOKEN.findall(line)
            maps.append(_value(tokens))
            assert not tokens
    return maps


def _value(tokens: list[str]) -> Any:
    token = tokens.pop(0)
    if token not in _CLOSED_BY:
        return None if token == "nil" else token[1:] if token[0] == ":" else int(token)
    items = []
    while tokens[0] != _CLOSED_BY[token]:
        items.append(_value(tokens))
    tokens.pop(0)
    return items if token == "[" else dict(zip(items[::2], items[1::2], strict=True))


def of(history: History, root: Path, whole: bool = False) -> list[dict[str, Any]]:
    to = io.StringIO()
    exported(history.write(root / "run"), whole).write(to)
    return parsed(to.getvalue())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_history_is_one_that_elle_accepts(tmp_path: Path, seed: int, whole: bool) -> None:
    rows = of(serial(Random(seed)), tmp_path, whole)
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    under_way: dict[int, list[Any]] = {}
    crashed: set[int] = set()
    appended: set[tuple[int, int]] = set()
    lists: dict[int, list[int]] = {}
    for row in rows:
        process = row["process"]
        assert process not in crashed, "Elle takes nothing of a process after an operation of unknown end"
        if row["type"] == "invoke":
            assert process not in under_way
            under_way[process] = row["value"]
            mine = [(key, element) for f, key, element in row["value"] if f == "append"]
            assert not appended.intersection(mine), "elements are unique"
            appended.update(mine)
        else:
            invoked = under_way.pop(process)
            assert [part[:2] for part in invoked] == [part[:2] for part in row["value"]]
            crashed |= {process} if row["type"] == "info" else set()
            for f, key, read in row["value"]:
                if f == "r" and row["type"] == "ok":
                    shorter, longer = sorted((lists.get(key, []), read), key=len)
                    assert longer[: len(shorter)] == shorter, "reads of a list are prefixes of the longest"
                    lists[key] = longer
    assert not under_way
    assert all((key, element) in appended for key, elements in lists.items() for element in elements)


def test_circle_is_in_the_export(tmp_path: Path) -> None:
    """The second send begins when the first one has ended, and its values are before."""
    history = planted("sends")
    circles = Circles(history, {})
    circles.read("r", 70, 80, Part(LOG, 2, "b", 10, 3), Part(LOG, 5, "a", 0, 3))
    rows = of(history, tmp_path)
    first, second = (
        [part[2] for part in row["value"]] for row in rows if row["type"] == "invoke" and row["time"] < 70_000
    )
    ((_, _, read),) = rows[-1]["value"]
    assert read == [*second, *first]
    assert [(row["type"], row["time"]) for row in rows[:3]] == [("invoke", 0), ("ok", 10_000), ("invoke", 20_000)]


def test_only_reads_of_committed_records_count_where_transactions_are(tmp_path: Path) -> None:
    circles = Circles()
    circles.transaction("t", 0, 5, 10, Part(LOG, 0, "t", 0))
    circles.read("r", 1, 2, Part(LOG, 0, "t", 0), isolation=UNCOMMITTED)
    assert {row["type"] for row in of(circles.history, tmp_path) for part in row["value"] if part[0] == "r"} == set()


def test_worker_reads_its_inputs(tmp_path: Path) -> None:
    rows = of(planted("both ways"), tmp_path, whole=True)
    mixed = [
        row["value"] for row in rows if row["type"] == "ok" and {part[0] for part in row["value"]} == {"r", "append"}
    ]
    assert len(mixed) == 2


@pytest.mark.parametrize(("whole", "lengths"), [(False, [1] * 8), (True, [2] * 4)])
def test_records_of_a_transaction_stand_alone_unless_it_is_whole(
    tmp_path: Path, whole: bool, lengths: list[int]
) -> None:
    assert [len(row["value"]) for row in of(planted("concurrent"), tmp_path, whole)] == lengths


def test_long_histories_lose_reads_but_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = serial(Random(1), 200)
    whole = of(history, tmp_path / "whole")
    monkeypatch.setattr(elle, "MAX_ELEMENTS", 200)
    thin = of(history, tmp_path / "thin")

    def longest(rows: list[dict[str, Any]]) -> dict[int, int]:
        reads = [part for row in rows for part in row["value"] if part[0] == "r" and part[2] is not None]
        return {key: max(len(read) for _, other, read in reads if other == key) for _, key, _ in reads}

    assert longest(thin) == longest(whole)
    assert len(thin) < len(whole)


def test_command_writes_file_or_reports_missing_tables(tmp_path: Path) -> None:
    folder = planted("sends").write(tmp_path / "run")
    result = CliRunner().invoke(export, ["--elle", str(folder)])
    assert result.exit_code == 0, result.output
    assert parsed((folder / "elle.edn").read_text(encoding="utf-8"))
    result = CliRunner().invoke(export, ["--elle", str(tmp_path)])
    assert result.exit_code == 2
    assert "has no history" in result.output
    with pytest.raises(SetupError):
        exported(tmp_path)
