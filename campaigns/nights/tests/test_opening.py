"""The night that a command plays, a new one or a stopped one, and the earlier nights that it reads."""

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from campaigns.nights import night as nights
from campaigns.nights.night import (
    SHARES,
    NightOptions,
    NightRefusal,
    kept_nights,
    opened,
    played,
    plays_of,
    settle,
    sums_of,
)
from campaigns.nights.tests.small_nights import a_play, work_of
from reports.night import Night, PlayRow, read_night, write_night, write_rows

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0


def started(options: NightOptions, now_s: float = NOW_S) -> tuple[Path, Night]:
    folder, night = opened(options, now_s)
    write_night(folder, night)
    return folder, night


def test_night_s_folder_is_named_after_its_start_and_its_seed_depends_on_the_day(tmp_path: Path) -> None:
    folder, night = started(NightOptions(2.0, tmp_path))
    assert folder == tmp_path / "20270115-080000"
    assert night.budget_s == 7200.0
    assert [stage.name for stage in night.stages] == list(SHARES)
    assert night.seed == opened(NightOptions(1.0, tmp_path / "other"), NOW_S + HOUR_S)[1].seed
    assert opened(NightOptions(1.0, tmp_path / "chosen", seed=7), NOW_S)[1].seed == 7


def test_same_command_resumes_within_a_day_and_other_one_starts_night(tmp_path: Path) -> None:
    folder, _ = started(NightOptions(2.0, tmp_path))
    assert opened(NightOptions(2.0, tmp_path), NOW_S + 23 * HOUR_S)[0] == folder
    assert opened(NightOptions(2.0, tmp_path), NOW_S + 25 * HOUR_S)[0] != folder
    assert opened(NightOptions(3.0, tmp_path), NOW_S + HOUR_S)[0] != folder


def test_finished_night_is_not_resumed(tmp_path: Path) -> None:
    folder, night = started(NightOptions(2.0, tmp_path))
    write_night(folder, msgspec.structs.replace(night, finished=True))
    assert opened(NightOptions(2.0, tmp_path), NOW_S + HOUR_S)[0] != folder
    with pytest.raises(NightRefusal, match=r"no night in .* was stopped"):
        opened(NightOptions(2.0, tmp_path / "empty", resume=True), NOW_S)


def test_resume_continues_newest_night_with_same_code(tmp_path: Path) -> None:
    folder, night = started(NightOptions(2.0, tmp_path))
    assert opened(NightOptions(9.0, tmp_path, resume=True), NOW_S + 99 * HOUR_S) == (folder, night)
    write_night(folder, msgspec.structs.replace(night, commit="0" * 40))
    with pytest.raises(NightRefusal, match="played commit 000000000000, and this is"):
        opened(NightOptions(9.0, tmp_path, resume=True), NOW_S)


def test_two_cannot_play_one_night(tmp_path: Path) -> None:
    first = nights.NightJournal(tmp_path)
    with pytest.raises(nights.BusyError, match="another process plays the night"):
        nights.NightJournal(tmp_path)
    settle(tmp_path)
    assert nights.is_left(tmp_path)
    first.close(done=False)


def test_killed_night_is_resumed_without_torn_line(tmp_path: Path) -> None:
    rows = [a_play(seed=each) for each in range(3)]
    first = nights.NightJournal(tmp_path)
    for row in rows:
        first.add(row)
    first.close(done=False)
    with (tmp_path / nights.NAME).open("ab") as file:
        file.write(b'["plays",["01-x"')
    again = nights.NightJournal(tmp_path)
    assert again.of(PlayRow) == rows
    again.add(a_play(seed=3))
    again.close(done=False)
    settle(tmp_path)
    assert [play.seed for play in plays_of(tmp_path)] == [0, 1, 2, 3]
    assert not nights.is_left(tmp_path)


def test_spent_time_is_kept_during_stage(tmp_path: Path) -> None:
    work = work_of(tmp_path / "20260101-000000", stages=opened(NightOptions(1.0, tmp_path / "n"), NOW_S)[1].stages)
    work.begin("live", 30.0)
    work.try_("01-x")
    work.try_("01-x")
    time.sleep(0.01)
    work.write()
    on_disk = read_night(work.folder)
    stage = next(each for each in on_disk.stages if each.name == "live")
    assert (stage.tried, stage.outcome) == (("01-x",), "")
    assert 0.0 < stage.spent_s < 5.0
    work.end("PASSED", "")
    assert work.tried_before("live") == [("01-x",)]
    assert work.left_s < 60.0


def test_controls_of_earlier_nights_count_and_a_damaged_night_does_not(tmp_path: Path) -> None:
    work = work_of(tmp_path / "20260101-000000")
    work.add(a_play(), a_play(outcome="FAILED"), a_play(mutant="m"), a_play(world="live"), a_play(target="kfake"))
    work.write()
    work.journal.write_tables(work.folder)
    damaged = work_of(tmp_path / "20260102-000000")
    damaged.write()
    (damaged.folder / "plays.parquet").write_bytes(b"no")
    (kept,) = kept_nights(tmp_path)
    assert kept.plays == 5
    assert sorted(map(str, kept.sums)) == sorted(map(str, sums_of(work.plays)))
    (only,) = played(kept.sums, 1)
    assert only.scenario == "01-x"
    assert only.seeds == 2
    assert only.reds == 1
    assert only.played_s == 0.002


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
    assert [play.is_replay for play in plays_of(tmp_path / "20260101-000000")] == [False, False]
    assert [play.is_replay for play in plays_of(tmp_path / "20260102-000000")] == [False, True]
