"""The small brokers that are bundled. What must be built is not built here."""

from pathlib import Path

import pytest

from bench.peers.cluster import launched
from bench.probe.broker import meet
from bench.targets.loader import find
from bench.targets.model import TargetError
from bench.targets.providers import kfake, librdkafka
from reference_broker.wire.apis import ApiKey


def test_kfake_has_version_of_its_modules() -> None:
    assert find("kfake").version == kfake.VERSION
    assert f"kfake {kfake.VERSION}" in (kfake.SOURCE / "go.mod").read_text()
    with pytest.raises(TargetError, match=r"leave @v1 out"):
        kfake.provide("v1")


def test_mock_cluster_is_that_of_the_installed_package() -> None:
    assert librdkafka.provide(find("librdkafka-mock").version) == {}
    with pytest.raises(TargetError, match=r"needs confluent-kafka 1\.0, and here is"):
        librdkafka.provide("1.0")


@pytest.mark.live
@pytest.mark.parametrize("nodes", [1, 3])
def test_mock_cluster_serves_at_the_ports_that_were_requested(tmp_path: Path, nodes: int) -> None:
    with launched(find(f"librdkafka-mock/{nodes}"), tmp_path) as cluster:
        broker = meet(("127.0.0.1", cluster.ports[0]))
    assert ApiKey.CREATE_TOPICS not in broker.versions
    assert len(broker.nodes) == nodes
