"""The three ways on small logs: the last segment alone is wrong, and P-9 is right and reads no more than it must."""

from dataclasses import replace
from pathlib import Path

import pytest

from campaigns.upgrade.ablation import WAYS, AblationCase, measured
from campaigns.upgrade.drawing import COLOURS, LABELS, drawn
from campaigns.upgrade.old_directory import WantedLog
from campaigns.upgrade.upgrade_command import ABLATION_HEADINGS, ablation_rows

NOW_MS = 1_700_000_000_000
SMALL = WantedLog(size_bytes=400_000, segment_bytes=20_000, batch_bytes=1_000, producers_per_hour=2.0, snapshots=0)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> AblationCase:
    return measured(SMALL, tmp_path_factory.mktemp("ablation") / "old", NOW_MS)


def test_last_segment_alone_is_cheap_and_wrong(case: AblationCase) -> None:
    last = case.figures["last segment"]
    assert last.read_bytes < case.log_bytes / 15
    assert 0 < last.missing < case.known
    assert last.all_wrong > 0, "it takes a transaction to begin where it does not"
    assert 0 < last.all_unequal < case.segments - 1, "where all are expired nothing is missing"


@pytest.mark.clause("P-9", "P-10")
def test_p9_is_right_and_reads_only_unexpired_segments(case: AblationCase) -> None:
    p9, everything = case.figures["P-9"], case.figures["everything"]
    for each in (p9, everything):
        assert each.missing == 0
        assert each.wrong == 0
        assert each.all_missing == 0
        assert each.all_wrong == 0
        assert each.all_unequal == 0
    assert everything.read_bytes > case.log_bytes * 0.9
    share = SMALL.expiration_hours * 5 / 4 / SMALL.hours
    assert p9.read_bytes < case.log_bytes * (share + 0.1)
    assert p9.all_bytes < case.log_bytes * (share + 0.1), "each snapshot begins where the one before it ended"


def test_with_an_expiration_as_long_as_the_log_p9_reads_all_of_it(tmp_path: Path) -> None:
    case = measured(replace(SMALL, expiration_hours=200.0), tmp_path / "old", NOW_MS)
    assert case.figures["P-9"].read_bytes == case.figures["everything"].read_bytes


@pytest.mark.thorough
def test_ablation_is_reported_and_drawn(case: AblationCase) -> None:
    found = {"length": [case], "expiration": [case], "rate": [case]}
    rows = ablation_rows(found)
    assert [row[3] for row in rows] == ["everything", "last segment", "P-9"]
    assert {len(row) for row in rows} == {len(ABLATION_HEADINGS)}
    picture = drawn(found)
    assert picture == drawn(found)
    for words in ("MiB read for one snapshot", "producers missing or wrong, %", *LABELS.values(), *WAYS):
        assert f"<!-- {words} -->" in picture, "the writer of SVG draws letters, and names what they say"
    for colour in COLOURS.values():
        assert picture.count(f"stroke: {colour}; stroke-width: 1.4") == 2 * len(found) + 1, "the legend has one, too"
