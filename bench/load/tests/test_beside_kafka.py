"""Clients in processes of their own: what they need is measured, and what fails is said."""

import subprocess
import sys

import pytest

from bench.load import beside_kafka
from bench.load.beside_kafka import Cost, Ran
from bench.load.calibration import ROOT, CalibrationError
from bench.load.sink import Sink, SinkPlan, serving

BURNS = "import time\nwhile time.process_time() < 0.4: pass\nprint(5)"


def test_start_of_a_process_is_no_cost_of_a_further_million() -> None:
    cost = Cost("sends", Ran(1_000_000, 3.0, 9.0), Ran(5_000_000, 5.0, 20.0))
    assert (cost.first_million_s, cost.further_million_s) == (3.0, 0.5)


@pytest.mark.live
def test_processor_time_is_that_of_the_process() -> None:
    ran = beside_kafka._run([sys.executable, "-c", BURNS], "burning", int)
    assert ran.records == 5
    assert 0.4 <= ran.cpu_s < 2


@pytest.mark.live
@pytest.mark.parametrize("program", ["raise SystemExit('disk full')", "print('disk full')"])
def test_client_that_fails_is_named(program: str) -> None:
    with pytest.raises(CalibrationError, match=r"burning.*disk full"):
        beside_kafka._run([sys.executable, "-c", program], "burning", int)


@pytest.mark.live
@pytest.mark.parametrize("work", ["send", "read"])
def test_client_alone_ends_after_its_records(work: str) -> None:
    with serving(Sink(SinkPlan(partitions=4))) as addresses:
        address = f"127.0.0.1:{addresses[0][1]}"
        words = [work, address, "t", "--partitions", "4", "--records", "5000"]
        command = [sys.executable, "-m", "bench.load.alone", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert 5_000 <= int(done.stdout) < 200_000


@pytest.mark.peer
@pytest.mark.timeout(300)
def test_our_client_costs_less_than_kafkas_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_kafka, "MILLION", 100_000)
    costs = {each.work: each for each in beside_kafka.measure(2, lambda _: None)}
    for ours, theirs in beside_kafka.PAIRS:
        assert costs[ours].few.cpu_s < costs[theirs].few.cpu_s
