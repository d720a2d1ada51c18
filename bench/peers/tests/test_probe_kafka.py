"""Apache Kafka responds to the probe's cases as it was recorded.

The cases that restart Kafka have a test of their own: each waits at least once for a Java process to start, which takes
a few seconds on an idle machine and a minute on a crowded one. ``pytest --log-cli-level=INFO`` shows the slowest cases.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.peers.kafka import KAFKA_VERSION
from bench.peers.systems import KAFKA
from bench.probe import kafka_responses
from bench.probe.broker import meet
from bench.probe.case import ProbeCase
from bench.probe.cases import all_cases
from bench.probe.play import play
from bench.probe.probe_command import of_cluster

pytestmark = pytest.mark.peer

SHOWN = 10


def _differences(folder: Path, cases: Sequence[ProbeCase]) -> dict[str, tuple[str, str]]:
    """Play the cases on a new node. Return its responses and the recorded ones, where they differ."""
    with KAFKA.launched(folder, 1, kafka_responses.SETTINGS) as cluster:
        target = of_cluster(cluster)
        outcomes = play(meet(target.address), cases, target=target)
    slowest = sorted(outcomes, key=lambda outcome: outcome.seconds, reverse=True)[:SHOWN]
    logging.getLogger(__name__).info("%s", [f"{outcome.case.id}: {outcome.seconds:.1f} s" for outcome in slowest])
    recorded = kafka_responses.recorded(KAFKA_VERSION)
    return {
        outcome.case.id: (outcome.verdict.value, recorded[outcome.case.id][0])
        for outcome in outcomes
        if outcome.verdict.value != recorded[outcome.case.id][0]
    }


@pytest.mark.timeout(1200)
def test_kafka_responds_as_recorded(tmp_path: Path) -> None:
    cases = all_cases()
    assert {case.id for case in cases} == set(kafka_responses.recorded(KAFKA_VERSION))
    assert _differences(tmp_path, [case for case in cases if not case.restarts]) == {}


@pytest.mark.timeout(1200)
def test_kafka_responds_after_restarts_as_recorded(tmp_path: Path) -> None:
    assert _differences(tmp_path, [case for case in all_cases() if case.restarts]) == {}
