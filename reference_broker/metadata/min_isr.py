"""``min.insync.replicas`` as the whole cluster knows it.

The controller and the leader of a partition must mean the same number, because the high watermark stands still exactly
as long as eligible leader replicas are kept (KIP-966). So the number stands in the metadata, for each topic that sets
its own and for the cluster. The settings of single brokers do not count as long as the cluster has one.
"""

from reference_broker.metadata.image import BROKER_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord

MIN_ISR_KEY = "min.insync.replicas"
CLUSTER = (BROKER_RESOURCE, "")
"""The resource of settings that hold for all brokers."""


def min_isr_of(image: MetadataImage, topic: str) -> int:
    """The topic's own value, or else the cluster's, which is 1 if there is none."""
    own = image.topic_configs(topic).get(MIN_ISR_KEY)
    return int(image.configs.get(CLUSTER, {}).get(MIN_ISR_KEY, 1) if own is None else own)


def cluster_min_isr_record(value: int) -> ConfigRecord:
    """The record that sets the cluster's value."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR_KEY, value=str(value))
