"""Runs against a node of ours, or a mutant of it, as if it were a broker of others. Frames show its sessions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.live.cluster_command import ClusterPlan, started
from chaos.live.runner import play_scenario
from chaos.live.tests.small_scenario import text_of, written
from chaos.live.tests.test_stock_client_on_mutants import mutated
from reports.guarantees import names_on_the_wire
from scenarios import loader

SHOWN = (*names_on_the_wire(), "unrequested-partition")
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
name = "fetch-response-lost"
kind = "response_dropped"
on = "response"
node = "any"
match = { api = "fetch", session = true, error = 0 }
nth = 5
every = 8
times = 4
"""
MUTANTS = {
    "epoch_not_advanced_when_response_lost": {"session-epoch-order"},
    "cache_keyed_by_client_id": {"session-lost"},
    "returns_every_partition": {"incremental-response-exact"},
    "forgotten_list_ignored": {"unrequested-partition"},
}


def _scenario(folder: Path) -> Path:
    fetchers = [FETCHERS.format(behaviour=each) for each in ("resending", "incremental", "forgetting")]
    text = text_of("An external broker's sessions", 50, LOAD, 100, *fetchers, LOST)
    guarantees = ", ".join(f'"{name}"' for name in SHOWN)
    text = text.replace("guarantees = []", f"guarantees = [{guarantees}]")
    return written(folder, "sessions", text.replace('["interceptor", "signals", "proxy"]', '["interceptor"]'))


@contextmanager
def _target(mutant: str, folder: Path) -> Iterator[str]:
    folder.mkdir()
    if mutant:
        with mutated(mutant, folder) as (_, address):
            yield address
    else:
        with started(ClusterPlan(folder / "cluster")) as cluster:
            yield cluster.addresses[0]


def played(folder: Path, mutant: str) -> Path:
    """Play it and return the run's folder. The control's mutant is empty."""
    own = folder / f"external-{mutant or 'control'}"
    own.mkdir()
    with _target(mutant, own / "node") as address:
        return play_scenario(loader.load(_scenario(own)), own / "run", seed=1, target=address).path
