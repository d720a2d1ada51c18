"""Files of several runs become one, and no Spark is needed for that."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reports.columns import Column, Table
from reports.errors import SetupError
from reports.read_tables import gather

SEEN = Table("seen", "history/seen*.parquet", "", (Column("who", "string", ""), Column("at_us", "int64", "", True)))
WHO, AT = pa.field("who", pa.string(), nullable=False), pa.field("at_us", pa.int64())


def put(run: Path, name: str, *fields: pa.Field, **columns: list[Any]) -> Path:
    (run / "history").mkdir(parents=True, exist_ok=True)
    path = run / "history" / name
    schema = pa.schema(fields)
    pq.write_table(pa.table({field.name: columns.get(field.name, []) for field in fields}, schema=schema), path)
    return path


def gathered(tmp_path: Path, *runs: Path) -> list[tuple[int, str | None, int | None]]:
    target = tmp_path / "all.parquet"
    assert gather(runs, SEEN, target)
    table = pq.read_table(target)
    assert table.schema.names == ["run", "who", "at_us"]
    return [(row["run"], row["who"], row["at_us"]) for row in table.to_pylist()]


def test_rows_stand_in_the_order_of_runs_and_files(tmp_path: Path) -> None:
    """Run 1 lacks the table, and keeps its number."""
    first, none, third = runs = [tmp_path / name for name in ("z", "y", "x")]
    none.mkdir()
    put(third, "seen.parquet", WHO, AT, who=["d"], at_us=[4])
    put(first, "seen-b.parquet", WHO, AT, who=["c"], at_us=[3])
    put(first, "seen-a.parquet", WHO, AT, who=["b", "a"], at_us=[2, 1])
    assert gathered(tmp_path, *runs) == [(0, "b", 2), (0, "a", 1), (0, "c", 3), (2, "d", 4)]


def test_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    """Columns have their places by name. One that the table does not have is omitted."""
    put(tmp_path / "old", "seen.parquet", WHO, who=["a"])
    put(tmp_path / "other", "seen.parquet", AT, pa.field("more", pa.int64()), WHO, at_us=[2], more=[7], who=["b"])
    assert gathered(tmp_path, tmp_path / "old", tmp_path / "other") == [(0, "a", None), (1, "b", 2)]


def test_files_and_columns_of_older_runs_get_their_present_names(tmp_path: Path) -> None:
    """``asked`` became ``requested_end``, and the file of the table has another name, too."""
    table = Table("described_transactions", "history/seen*.parquet", "", (Column("requested_end", "string", ""),))
    put(tmp_path / "new", "seen.parquet", pa.field("requested_end", pa.string()), requested_end=["abort"])
    for name in ("seen.parquet", "told_transactions-0.parquet"):
        put(tmp_path / "old", name, pa.field("asked", pa.string()), asked=["commit"])
    assert gather([tmp_path / "new", tmp_path / "old"], table, tmp_path / "all.parquet")
    assert pq.read_table(tmp_path / "all.parquet")["requested_end"].to_pylist() == ["abort", "commit", "commit"]


def test_file_without_rows_adds_none(tmp_path: Path) -> None:
    put(tmp_path / "run", "seen-a.parquet", WHO, AT)
    assert gathered(tmp_path, tmp_path / "run") == []
    put(tmp_path / "run", "seen-b.parquet", WHO, AT, who=["a"], at_us=[1])
    (tmp_path / "run" / "history" / "seen-c.parquet").touch()
    assert gathered(tmp_path, tmp_path / "run") == [(0, "a", 1)]


def test_without_the_table_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert not gather([tmp_path / "run"], SEEN, tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_rows_that_do_not_fit_into_memory_at_once_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reports.read_tables.ROWS_AT_ONCE", 2)
    names = [str(number) for number in range(5)]
    for run in ("a", "b"):
        put(tmp_path / run, "seen.parquet", WHO, AT, who=names, at_us=list(range(5)))
    rows = gathered(tmp_path, tmp_path / "a", tmp_path / "b")
    assert rows == [(run, name, at) for run in (0, 1) for at, name in enumerate(names)]


@pytest.mark.parametrize("damage", ["cut off", "a page", "another type"])
def test_damaged_file_is_named_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = put(tmp_path / "run", "seen.parquet", WHO, AT, who=["a"], at_us=[1])
    data = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "a page":
        path.write_bytes(data[:4] + bytes(60) + data[64:])
    else:
        put(tmp_path / "run", "seen.parquet", WHO, pa.field("at_us", pa.string()), who=["a"], at_us=["soon"])
    with pytest.raises(SetupError) as refused:
        gather([tmp_path / "run"], SEEN, tmp_path / "all.parquet")
    message = str(refused.value)
    assert message.startswith(f"{path} cannot be read as Parquet: ")
    assert "\n" not in message
    assert message.endswith(".")
    assert ". " not in message
