"""A comparison plays one scenario three times, and refuses before the first what could not be played."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.live import comparison
from chaos.live.errors import SetupError
from chaos.live.run_folder import RunFolder
from scenarios.loader import find
from scenarios.model import Scenario, Swarm


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Scenario, Path, dict[str, Any]]]:
    """The calls of the runner."""
    seen: list[tuple[Scenario, Path, dict[str, Any]]] = []

    def play(scenario: Scenario, out: Path, **more: Any) -> RunFolder:
        seen.append((scenario, out, more))
        return RunFolder(out)

    monkeypatch.setattr(comparison, "play_scenario", play)
    return seen


def test_one_load_one_seed_three_revisions(played: list[tuple[Scenario, Path, dict[str, Any]]], tmp_path: Path) -> None:
    whole = find("01-lost-response")
    folders = comparison.compare(whole, tmp_path / "out", 7, "typed")
    assert folders == [(each, tmp_path / "out" / each) for each in ("final", "first", "none")]
    assert [{group.revision for group in each.load.fetchers} for each, _, _ in played] == [
        {"final"},
        {"first"},
        {"none"},
    ]
    slots = "max.incremental.fetch.session.cache.slots"
    settings = [dict(each.cluster.config) for each, _, _ in played]
    assert settings == [{}, {"fetch.session.revision": "first"}, {slots: "0"}]
    assert {more["seed"] for _, _, more in played} == {7}
    assert {each.load.producers for each, _, _ in played} == {whole.load.producers}
    assert {each.faults for each, _, _ in played} == {whole.faults}


def test_unplayable_comparison_is_refused_before_first_run(
    played: list[tuple[Scenario, Path, dict[str, Any]]], tmp_path: Path
) -> None:
    swarm = replace(find("plain-load"), swarm=Swarm(("node_killed",), 4.0, 4.0))
    with pytest.raises(SetupError, match="draws its faults"):
        comparison.compare(swarm, tmp_path / "out", 1)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "x").touch()
    for out in (tmp_path / "used", tmp_path / "used" / "x"):
        with pytest.raises(SetupError, match="give --out a new one"):
            comparison.compare(find("plain-load"), out, 1)
    assert played == []


def test_mirror_is_played_with_metadata_epochs_and_without(
    played: list[tuple[Scenario, Path, dict[str, Any]]], tmp_path: Path
) -> None:
    whole = find("mirror")
    folders = comparison.compare(whole, tmp_path / "out", 7)
    assert [each for each, _ in folders] == ["with-epochs", "without-epochs"]
    assert [more["variant"] for _, _, more in played] == ["with metadata epochs", "without metadata epochs"]
    on, off = (scenario for scenario, _, _ in played)
    assert on.load.mirror is not None
    assert off.load.mirror is not None
    assert (on.load.mirror.metadata_epoch, off.load.mirror.metadata_epoch) == (True, False)
    levels = [dict(each.cluster.config)["crucible.bootstrap.metadata.epoch"] for each in (on, off)]
    assert levels == ["1", "0"]
    assert replace(off.load.mirror, metadata_epoch=True) == on.load.mirror
    assert off.faults == on.faults
    assert off.load.producers == on.load.producers
    assert "rewinds" in on.guarantees
    assert not {"rewinds", "commit-regression"} & set(off.guarantees), "the failure that is shown is no broken promise"
    assert "lost-write" in off.guarantees
    assert (on.min_rewinds, off.min_rewinds) == (0, 1), "a run without rewinds would not show what the epochs prevent"
