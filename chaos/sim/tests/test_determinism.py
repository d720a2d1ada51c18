"""One seed, one trace: also in another interpreter, with another hash seed, and whatever else was played before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.seeds import number_for
from chaos.sim.one_seed import play_seed
from scenarios import loader

ROOT = Path(__file__).resolve().parents[3]
PLAY = """
import sys
from chaos.sim.one_seed import play_seed
from scenarios import loader
for name in sys.argv[2:]:
    print(play_seed(loader.find(name), int(sys.argv[1]), hashed=True).verdict.trace_hash)
"""


SCENARIOS = ("01-lost-response", "27-killed-at-epoch", "14-controller-killed-in-transaction")


def hashes_in_new_interpreter(seed: int, hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(seed), *SCENARIOS],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.nightly
@pytest.mark.live
def test_separate_interpreters_give_the_same_hashes() -> None:
    here = [play_seed(loader.find(name), 7, hashed=True).verdict.trace_hash for name in SCENARIOS]
    assert [len(each) for each in here] == [64, 64, 64]
    assert hashes_in_new_interpreter(7, "1") == hashes_in_new_interpreter(7, "2") == here


def test_another_seed_gives_another_hash() -> None:
    scenario = loader.find("1")
    first, second = (play_seed(scenario, seed, hashed=True).verdict for seed in (1, 2))
    assert first.trace_hash != second.trace_hash


def test_run_is_not_changed_by_hashing_it_or_by_what_was_played_before() -> None:
    scenario = loader.find("1")
    first = play_seed(scenario, 3).verdict
    play_seed(loader.find("27"), 4)
    again = play_seed(scenario, 3, hashed=True).verdict
    assert first.events == again.events
    assert first.fetches == again.fetches
    assert first.acked == again.acked
    assert first.faults == again.faults


def test_purposes_have_generators_of_their_own() -> None:
    assert number_for(1, "links") == number_for(1, "links")
    assert len({number_for(seed, name) for seed in (1, 2) for name in ("links", "disk")}) == 4
