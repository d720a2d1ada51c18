"""A load without faults: the clients, and what the run writes for its user and for the judge. No process is started."""

from pathlib import Path

import pytest

from chaos.live import load_alone
from chaos.live.errors import NodeDied, SetupError
from chaos.live.load_alone import LoadAlonePlan, drive, sized
from reports.guarantees import SeenFrom, names_seen_from
from reports.manifest import read_manifest
from scenarios.loader import find


@pytest.mark.parametrize("clients", [1000, 17, 3])
def test_client_count_keeps_proportions_of_scenario(clients: int) -> None:
    scenario = find("01-lost-response")  # 8, 4 and 4.
    counts = [fetcher.count for fetcher in sized(scenario, clients).load.fetchers]
    assert sum(counts) == max(clients, len(counts))
    assert min(counts) >= 1
    if clients >= 16:
        assert abs(counts[0] - 2 * counts[1]) <= 3
    assert sized(scenario, 0) == scenario


def test_target_gets_topics_of_this_run_and_no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    specs = []
    monkeypatch.setattr(load_alone, "discover", lambda _: (["there:1", "there:2"], {"fetch": 12}))
    monkeypatch.setattr(load_alone, "_run_fleet", lambda spec, *_: specs.append(spec))
    plan = LoadAlonePlan(tmp_path / "run", "there:1", seed=5, seconds=7, clients=40, workers=3, shape="spike")
    folder = drive(find("plain-load"), plan, "typed", lambda _: None)
    (spec,) = specs
    assert spec.bootstrap == ["there:1", "there:2"]
    assert spec.load.seconds == 7
    assert spec.workers == 3
    assert spec.dial == {}
    assert spec.versions == {"fetch": 12}
    assert spec.shape is not None
    assert spec.shape.kind == "spike"
    assert spec.topic_prefix.startswith("crucible-")
    assert sum(group.count for group in spec.load.fetchers) == 40
    manifest = read_manifest(folder.path)
    assert (manifest.target, manifest.seed, manifest.crash) == ("there:1", 5, "")
    assert manifest.expectations.faults == ()
    assert manifest.expectations.guarantees
    assert not set(manifest.expectations.guarantees) - set(names_seen_from(SeenFrom.CLIENTS))
    assert "fetch-gap" in manifest.expectations.guarantees


def test_fetchers_stopped_by_hand_need_not_have_read_to_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load_alone, "discover", lambda _: (["there:1"], {}))
    monkeypatch.setattr(load_alone, "_run_fleet", lambda *_: None)
    folder = drive(find("plain-load"), LoadAlonePlan(tmp_path / "run", "there:1", page=8089), "", lambda _: None)
    promised = read_manifest(folder.path).expectations.guarantees
    assert "fetch-gap" not in promised
    assert {"lost-write", "unseen"} <= set(promised)


def test_fleet_that_dies_is_a_crash_and_one_that_cannot_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load_alone, "discover", lambda _: (["there:1"], {}))

    def ends_with(error: Exception) -> None:
        def run_fleet(*_: object) -> None:
            raise error

        monkeypatch.setattr(load_alone, "_run_fleet", run_fleet)

    plan = LoadAlonePlan(tmp_path / "run", "there:1")
    ends_with(NodeDied("a worker is gone"))
    assert read_manifest(drive(find("plain-load"), plan, "", lambda _: None).path).crash == "a worker is gone"
    ends_with(SetupError("no broker"))
    with pytest.raises(SetupError, match="no broker"):
        drive(find("plain-load"), LoadAlonePlan(tmp_path / "other", "there:1"), "", lambda _: None)
    assert not (tmp_path / "other").exists()


def test_fleet_events_are_formatted_for_terminal() -> None:
    say = load_alone._words
    assert "open http://127.0.0.1:8089" in say({"event": "web", "url": "http://127.0.0.1:8089", "clients": 30})
    report = {"event": "progress", "second": 10, "ok": 12_345, "failed": 1, "cpu_permille": 500}
    assert say(report) == "second 10: 12,345 operations done, 1 failed, workers take 0.50 cores"
    assert say({**report, "second": 11}) == ""
    assert say({"event": "done"}) == ""
