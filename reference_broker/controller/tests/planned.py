"""Plan a change by itself, without a controller, in a context of the test."""

from collections.abc import Iterable
from random import Random

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.record_batches import run_plan
from reference_broker.controller.write_operations import ControllerWriteOperation, PlanContext, Spend
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.values import NOWHERE


def brokers(*broker_ids: int, fenced: tuple[int, ...] = ()) -> MetadataImage:
    """Return an image with brokers only. Each one's epoch is its ID."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for broker_id in broker_ids:
        delta.put_broker(BrokerImage(broker_id, broker_id, bytes(16), "h", 9092, broker_id in fenced))
    return delta.build(NOWHERE)


def after(image: MetadataImage, records: Iterable[MetadataRecord]) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        replay(delta, record)
    return delta.build(NOWHERE)


def plan_context(
    latest: MetadataImage,
    *,
    published: MetadataImage | None = None,
    spend: Spend = lambda _: False,
    seed: int = 0,
    **config: str,
) -> PlanContext:
    return PlanContext(
        latest=latest,
        published=latest if published is None else published,
        config=BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()}),
        spend=spend,
        next_offset=100,
        for_topic_ids=Random(seed),
        for_placement=Random(seed + 1),
    )


def records_of(change: ControllerWriteOperation[object], context: PlanContext) -> list[MetadataRecord]:
    return list(run_to_end(run_plan(lambda: change.plan(context))))


def slices_of(change: ControllerWriteOperation[object], latest: MetadataImage) -> int:
    """Return the number of events of the plan where each has time for one entry only."""
    plan, count = change.plan(plan_context(latest, spend=lambda _: True)), 1
    for _ in plan:
        count += 1
    return count
