"""Fetch sessions of a broker that is not ours, judged by the frames before it: a node of ours plays the foreign one.

The control passes, and mutants of the node break what frames show. All runs are judged in one Spark session.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos.live.cluster import ClusterPlan, addresses_of, started
from chaos.live.runner import play
from chaos.live.tests.small_scenario import text_of, written
from chaos.live.tests.test_stock_client_on_mutants import mutated
from reports import schema
from reports.guarantees import names_on_the_wire
from reports.judge import judge_many
from reports.verdict import Outcome, Verdict
from scenarios import loader

LOAD = """
[load]
seconds = 4
sim_seconds = 4
idle_appends_s = 3
request_timeout_ms = 2000

[cluster]
nodes = 1

[[load.topics]]
name = "hot"
partitions = 6
"""
FETCHERS = """
[[load.fetchers]]
name = "{behaviour}"
behaviour = "{behaviour}"
count = 2
topic = "hot"
partitions = 6
max_wait_ms = 100
poll_interval_ms = 50
"""
LOST = """
[[fault]]
name = "fetch-answer-lost"
kind = "response_dropped"
on = "reply"
node = "any"
match = { api = "fetch", session = true, error = 0 }
nth = 5
every = 8
times = 4
"""
MUTANTS = {
    "epoch_not_advanced_when_response_lost": {"session-epoch-order"},
    "cache_keyed_by_client_id": {"session-lost"},
    "answers_everything": {"incremental-answer-exact"},
    "forgotten_list_ignored": {"unrequested-partition"},
}


def scenario_of(folder: Path) -> Path:
    fetchers = [FETCHERS.format(behaviour=each) for each in ("resending", "incremental", "forgetting")]
    text = text_of("A foreign broker's sessions", 50, LOAD, 100, *fetchers, LOST)
    guarantees = ", ".join(f'"{name}"' for name in (*names_on_the_wire(), "unrequested-partition"))
    text = text.replace("guarantees = []", f"guarantees = [{guarantees}]")
    return written(folder, "sessions", text.replace('["interceptor", "signals", "proxy"]', '["interceptor"]'))


@contextmanager
def target(mutant: str, folder: Path) -> Iterator[str]:
    folder.mkdir()
    if mutant:
        with mutated(mutant, folder) as (_, address):
            yield address
    else:
        with started(ClusterPlan(folder / "cluster")) as members:
            yield addresses_of(members)[0]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """The verdict for each mutant; the control's name is empty."""
    folder = tmp_path_factory.mktemp("foreign")
    scenario = loader.load(scenario_of(folder))
    runs = []
    for mutant in ("", *MUTANTS):
        name = mutant or "control"
        with target(mutant, folder / f"node-{name}") as address:
            runs.append(play(scenario, folder / name, seed=1, target=address).path)
    return dict(zip(("", *MUTANTS), judge_many(runs), strict=True))


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.clause("F-2", "F-3", "F-10", "F-12", "F-14")
def test_frames_show_that_sessions_are_kept(verdicts: dict[str, Verdict]) -> None:
    control = verdicts[""]
    assert control.outcome is Outcome.PASSED, control.summary
    judged = {each.name: each for each in control.guarantees}
    for name in (*names_on_the_wire(), "unrequested-partition"):
        assert judged[name].status == "holds"
        assert judged[name].evidence > 100
    assert judged["one-leader-per-epoch"].status == "not checked"
    rows = pq.read_table(control.run_dir / schema.FRAMES.path.replace("*", "-0")).to_pylist()
    assert {"answered", "struck"} <= {row["what"] for row in rows}


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.clause("F-2", "F-3", "F-10", "F-12", "F-14")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_frames_show_a_mutant_that_lacks_a_part_of_sessions(verdicts: dict[str, Verdict], mutant: str) -> None:
    caught = verdicts[mutant]
    assert caught.outcome is Outcome.FAILED, caught.summary
    broken = {each.name for each in caught.guarantees if each.status == "broken"}
    assert broken >= MUTANTS[mutant]
