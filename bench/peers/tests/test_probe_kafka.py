"""Apache Kafka answers the probe's cases as it was recorded."""

from pathlib import Path

import pytest

from bench.peers.jars import VERSION
from bench.peers.systems import KAFKA
from bench.probe import kafka_answers
from bench.probe.broker import meet
from bench.probe.command import of_cluster
from bench.probe.play import play
from bench.probe.registry import all_cases

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


def test_kafka_answers_as_recorded(tmp_path: Path) -> None:
    with KAFKA.launched(tmp_path, 1, kafka_answers.SETTINGS) as cluster:
        target = of_cluster(cluster)
        outcomes = play(meet(target.address), all_cases(), target=target)
    recorded = {name: verdict for name, (verdict, _) in kafka_answers.recorded(VERSION).items()}
    assert {each.case.id: each.verdict.value for each in outcomes} == recorded
