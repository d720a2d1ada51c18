"""What a night reads of earlier ones, also of those that older versions left."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from campaigns.nights.night import kept_nights, plays_of
from campaigns.nights.tests.small_nights import a_play
from reports.night import Night, PlayRow, write_night, write_rows


def test_nights_without_the_mark_of_replays_count_whole_and_others_without_their_replays(tmp_path: Path) -> None:
    drawn, again = a_play(seed=5), replace(a_play(seed=1), is_replay=True)
    for name in ("20260101-000000", "20260102-000000"):
        folder = tmp_path / name
        write_night(folder, Night(night=name, started_us=1, budget_s=1.0, seed=1))
        file = write_rows(folder, PlayRow, [drawn, again])
        if name.startswith("20260101"):
            pq.write_table(pq.read_table(file).drop_columns(["is_replay"]), file)
    old, new = kept_nights(tmp_path)
    assert [(each.seeds, each.last_seed) for each in old.sums] == [(2, 5)]
    assert [(each.seeds, each.last_seed) for each in new.sums] == [(1, 5)]
    assert [each.is_replay for each in plays_of(tmp_path / "20260101-000000")] == [False, False]
    assert [each.is_replay for each in plays_of(tmp_path / "20260102-000000")] == [False, True]
