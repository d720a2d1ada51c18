"""The comparison of snapshots with the tombstone horizon, with one seed and a small load."""

import sys

import pytest

from campaigns.experiments.horizon import VARIANTS, Caught, Cut, HorizonRun, HorizonSize, main, played, table

pytestmark = pytest.mark.simulated

SNAPSHOTS, HORIZON, _, NEITHER = VARIANTS
CUT = Cut("6 s", 6.0)
SMALL = HorizonSize(keys=200, before_s=7.0, after_s=4.0)


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--processes", "0")])
def test_nothing_to_play_is_refused(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["horizon_compared", *words])
    with pytest.raises(SystemExit):
        main()
    assert "must be at least 1" in capsys.readouterr().err


def caught(variant: object) -> dict[str, Caught]:
    seen = played(HorizonRun(variant, CUT, 1, SMALL))  # type: ignore[arg-type]
    assert not seen.broken
    assert all(each.after_us >= 0 and each.sent_bytes > 0 for each in seen.caught.values())
    return seen.caught


@pytest.mark.clause("S-15")
def test_observer_with_snapshot_has_written_values() -> None:
    observer = caught(SNAPSHOTS)["observer"]
    assert (observer.wrong, observer.restarts) == (0, 1)


@pytest.mark.clause("H-3", "H-4")
def test_readers_that_missed_tombstones_are_right_only_with_horizon() -> None:
    with_horizon, without = caught(HORIZON), caught(NEITHER)
    for who in ("follower", "reader"):
        assert with_horizon[who].wrong == 0 < without[who].wrong
        assert with_horizon[who].restarts >= 1
        assert without[who].restarts == without[who].again_bytes == 0


def test_cell_is_the_median_with_the_least_and_the_greatest_value() -> None:
    rows = [Caught(after_us=each * 1000, sent_bytes=9, again_bytes=each, restarts=1, wrong=0) for each in (30, 10, 20)]
    assert table({(CUT, HORIZON, "reader"): rows})[2:] == [
        "| 6 s | horizon (H) | reader | 0 | 20 (10 to 30) | 9 | 20 (10 to 30) | 1 |"
    ]
