"""The check of min.insync.replicas finds a cluster without it, a broker with its own, and lists that outlive it."""

from collections.abc import Mapping
from typing import Any

import pytest

from chaos.checks.isr import FEATURE, MIN_ISR, MinIsrKept
from chaos.tests.check_context import check_context
from chaos.tests.stub_node import StubBroker, StubImages, StubNode
from reference_broker.core.events import TimerFired
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage

CLUSTER, BROKER, TOPIC = (4, ""), (4, "1"), (2, "t")
Configs = Mapping[tuple[int, str], Mapping[str, str]]


def image(configs: Configs, *, level: int = 1, **partition: Any) -> MetadataImage:
    known: dict[str, Any] = {"replicas": (0, 1), "isr": (0,), "leader": 0, "leader_epoch": 1, "partition_epoch": 1}
    topic = TopicImage("t", b"t" * 16, (PartitionImage(**{**known, **partition}),))
    return MetadataImage(features={FEATURE: level}, topics={"t": topic}, configs=configs)


def stories(*images: MetadataImage) -> list[str]:
    check = MinIsrKept(check_context())
    for number, each in enumerate(images):
        node = StubNode(StubBroker(controller=StubImages(each))).as_node()
        event = None if number == 0 else TimerFired(1)
        check.inspect(number, 0, node, event, False)
    return [each.story for each in check.violations]


def of_cluster(value: str = "2", **own: str) -> Configs:
    return {CLUSTER: {MIN_ISR: value}, TOPIC: own}


@pytest.mark.clause("E-8")
def test_cluster_must_have_a_minimum_and_no_broker_its_own() -> None:
    assert stories(image(of_cluster())) == []
    assert stories(image({}, level=0)) == []
    assert stories(image({})) == [f"node-0 published metadata in which the cluster has no {MIN_ISR}"]
    own = {**of_cluster(), BROKER: {MIN_ISR: "1"}}
    assert stories(image(own)) == [f"node-0 published metadata in which broker 1 has its own {MIN_ISR}"]


@pytest.mark.clause("E-8")
@pytest.mark.parametrize("after", [of_cluster("1"), {CLUSTER: {MIN_ISR: "2"}, TOPIC: {MIN_ISR: "1"}}])
def test_change_clears_the_eligible_replicas(after: Configs) -> None:
    before = image(of_cluster(), elr=(1,))
    (story,) = stories(before, image(after, elr=(1,)))
    assert "t-0 kept the eligible leader replicas (1,)" in story
    assert stories(before, image(after, partition_epoch=2)) == []
    assert stories(before, image(after, elr=(1,), partition_epoch=3)) == [], "it changed again since"
    assert stories(image(of_cluster(), elr=(1,), isr=()), image(after, elr=(1,), isr=())) == []
    assert stories(before, image(dict(of_cluster()), elr=(1,))) == [], "the value is the same"
