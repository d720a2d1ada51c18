"""The figures of groups and mirrors equal a plain computation over the same history; the pages show it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.collect import Findings
from reports.comparison import compare_runs
from reports.mirrored import mirrored, rewinds, tracks
from reports.page import groups
from reports.tests.groups import EVERY_US, GROUP, LEAVE_US, NEW_IS_ALONE, OLD_JOINS, OLD_LEAVES
from reports.tests.history import History, int_of
from reports.tests.played import generate
from reports.tests.test_verdict import findings

if TYPE_CHECKING:
    from conftest import JudgedRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
CLEAN_SEED, REWOUND_SEED = 12, 13
BACK_US, PARTITION = 3_800_000, 1
"""The mirror starts again then, in this partition, and is slow."""


def rewound(history: History) -> int:
    """Copy all of the partition again, and what came next after that. Return how many records came twice."""
    mine = sorted(history.rows("copies", partition=PARTITION), key=lambda row: int_of(row, "source_offset"))
    old = [row for row in mine if int_of(row, "at_us") < BACK_US]
    again = [{**row, "at_us": BACK_US + 30_000 * number} for number, row in enumerate(old)]
    back_us = int_of(again[-1], "at_us")
    late = [row for row in mine if BACK_US <= int_of(row, "at_us") <= back_us]
    for number, row in enumerate(late):
        row["at_us"] = back_us + 1 + number
    history.tables["copies"] += again
    held = history.rows("target_runs", partition=PARTITION)
    end = max(int_of(row, "first_offset") for row in held)
    twice = [{**row, "first_offset": end + int_of(row, "source_offset")} for row in again]
    names = ("topic", "partition", "first_offset", "count", "writer", "first_sequence")
    history.tables["target_runs"] += [{name: row[name] for name in names} for row in twice]
    return sum(int_of(row, "count") for row in again)


def clean_history() -> History:
    clean = generate(CLEAN_SEED)
    joined = clean.rows("memberships", event="joined", generation=2, process="member-1")[0]
    clean.tables["memberships"].append({**joined, "since_us": 2_400_000, "at_us": 2_500_000})
    return clean


def write_histories(root: Path, _tests: Sequence[pytest.Function]) -> dict[str, Path]:
    back = generate(REWOUND_SEED)
    rewound(back)
    return {"clean": clean_history().write(root / "clean"), "back": back.write(root / "back")}


@pytest.fixture(scope="module")
def history() -> History:
    """The history of the run "clean"."""
    return clean_history()


@pytest.fixture(scope="module")
def clean(found_by_name: "Mapping[str, JudgedRun]") -> Findings:
    return found_by_name["clean"].findings


@pytest.fixture(scope="module")
def rewound_run(found_by_name: "Mapping[str, JudgedRun]") -> Findings:
    return found_by_name["back"].findings


def test_group_is_counted(history: History, clean: Findings) -> None:
    (group,) = clean.groups
    reads = [row for name in ("member-0", "member-1") for row in history.rows("runs", process=name)]
    places = {
        (row["partition"], offset)
        for row in reads
        for offset in range(int_of(row, "first_offset"), int_of(row, "first_offset") + int_of(row, "count"))
    }
    records = sum(int_of(row, "count") for row in reads)
    assert group["group"] == GROUP
    assert group["members"] == 2
    assert group["partitions"] == 3
    assert group["generations"] == 3
    assert group["records"] == records
    assert group["again"] == records - len(places)
    assert group["again"] > 0
    commits = history.rows("commits", kind="commit")
    assert group["committed"] == sum(row["error"] is None for row in commits)
    assert group["unknown"] == 3
    assert group["refused"] == 0


def test_rebalances_last_from_first_request_to_last_member_that_knows(clean: Findings) -> None:
    rebalances = groups.rebalances(clean)
    played = (NEW_IS_ALONE, OLD_JOINS, OLD_LEAVES)
    assert [(rebalance.at_us, rebalance.took_us) for rebalance in rebalances] == [
        (each.from_us, each.took_us) for each in played
    ]
    assert [(rebalance.generation, rebalance.members) for rebalance in rebalances] == [(1, 1), (2, 2), (3, 1)]
    assert [rebalance.cause for rebalance in rebalances] == ["", "", ""]


def test_partitions_have_no_owner_from_revocation_to_end_of_rebalance(clean: Findings) -> None:
    """The member that leaves gives up its partitions before the rebalance."""
    without_owner_us = [rebalance.free_us for rebalance in groups.rebalances(clean)]
    assert without_owner_us == [None, OLD_JOINS.took_us, LEAVE_US + OLD_LEAVES.took_us]


def test_coordinator_moves_from_the_last_commit_to_the_first(history: History, clean: Findings) -> None:
    (move,) = groups.coordinators(clean)
    done = sorted(int_of(row, "at_us") for row in history.rows("commits", kind="commit", error=None))
    last = max(at for at in done if at < 3_000_000)
    assert move.node == 0
    assert move.next_node == 1
    assert move.at_us == last
    assert move.without_us == min(at for at in done if at > 3_000_000) - last
    assert move.loaded_us == 3_300_000 - last
    assert move.records == 120
    assert move.failed == 3
    assert move.cause == "kill"


def test_mirror_that_never_went_back_copied_nothing_twice(history: History, clean: Findings) -> None:
    (mirror,) = mirrored(clean)
    assert mirror.records == sum(int_of(row, "count") for row in history.rows("copies"))
    assert mirror.again == 0
    assert mirror.rewinds == 0
    assert mirror.farthest == 0
    assert mirror.added_us == 0
    assert mirror.held == mirror.records
    assert mirror.held_twice == 0
    assert mirror.worst_lag_us <= 3 * EVERY_US


def test_rewind_costs_copies_and_time(rewound_run: Findings) -> None:
    again = rewound(generate(REWOUND_SEED))
    (mirror,) = mirrored(rewound_run)
    (cost,) = rewinds(rewound_run)
    assert mirror.again == again
    assert mirror.rewinds == 1
    assert mirror.farthest == cost.from_offset
    assert mirror.held_twice == again
    assert cost.partition == PARTITION
    assert cost.at_us == BACK_US
    assert cost.to_offset == 0
    # Its first records were half a second old and less when it first came to them, and lay 3.8 s back then.
    assert 2_500_000 <= cost.added_us <= 4_000_000
    assert mirror.added_us == cost.added_us
    assert cost.took_us is not None
    assert cost.took_us < 3_000_000


def _rows(**values: int) -> dict[str, object]:
    return {"topic": "t", "partition": 0, **values}


def test_lag_is_the_age_of_the_oldest_record_not_reached() -> None:
    source = [_rows(slot=4, end=10), _rows(slot=6, end=20), _rows(slot=9, end=30)]
    copied = [_rows(slot=5, position=10), _rows(slot=7, position=4), _rows(slot=11, position=30)]
    back = [_rows(at_us=7 * 250_000 + 1, from_offset=10, to_offset=0)]
    one = findings(mirror_source=source, mirrored=copied, mirror_rewinds=back)
    track = tracks(one)["t", 0]
    assert track.first == 4
    assert track.ends == (10, 10, 20, 20, 20, 30, 30, 30)
    assert track.positions == (0, 10, 10, 4, 4, 4, 4, 30)
    assert [lag // 250_000 for lag in track.lags_us] == [0, 0, 0, 3, 4, 5, 6, 0]
    (cost,) = rewinds(one)
    assert cost.before_us == 0
    assert cost.worst_us == 6 * 250_000
    assert cost.added_us == 6 * 250_000
    assert cost.took_us == 5 * 250_000 - 1
    never = findings(mirror_source=source, mirrored=copied[:2], mirror_rewinds=back)
    assert rewinds(never)[0].took_us is None


@pytest.mark.nightly
def test_runs_with_and_without_the_mechanism_on_one_page(spark: object, tmp_path: Path) -> None:
    on, off = generate(CLEAN_SEED), generate(CLEAN_SEED)
    again = rewound(off)
    reset = {**off.rows("resets")[0], "reason": "OFFSET_OUT_OF_RANGE", "from_offset": 40}
    off.tables["resets"] += [{**reset, "to_offset": 4}, {**reset, "to_offset": 41}]
    folders = [
        on.write(tmp_path / "on", variant="with metadata epochs"),
        off.write(tmp_path / "off", variant="without"),
    ]
    compared = compare_runs(folders, tmp_path / "out", spark)  # type: ignore[arg-type]
    text = compared.page.read_text(encoding="utf-8")
    for shown in ("a mirror compared", "with metadata epochs", "without", f">{again}<", "added by a rewind, at most"):
        assert shown in text, shown
    names = {path.name for path in compared.page.parent.glob("*.png")}
    assert names == {"comparison-positions.png", "comparison-lag.png"}
    page = (tmp_path / "off" / "report" / "index.html").read_text(encoding="utf-8")
    for shown in (
        'id="groups"',
        'id="mirror"',
        'id="mirror-rewinds"',
        "copied twice",
        "36 records back",
        "of coordinators",
    ):
        assert shown in page, shown
    assert {"groups.png", "mirror.png"} <= {path.name for path in (tmp_path / "off" / "report").glob("*.png")}
