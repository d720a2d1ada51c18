"""A log whose closed segments are to be copied."""

from dataclasses import replace

from reference_broker.log.config import LogConfig
from reference_broker.log.tests.tiered_world import TIERED, filled
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.remote_log.tests.tier_world import Tier, TierNode

KEPT = replace(TIERED, local_retention_bytes=-1)
"""Nothing goes here, so that copies can be compared."""
SIX_SEGMENTS = 18
FENCE = "Write DELETE_SEGMENT_STARTED"
"""A leader's first act: an event that changes nothing."""
ACTS = 3 + 4
"""Number of operations of a copy of a segment without transactions: five objects, and two events around them."""


def copied(config: LogConfig = KEPT) -> tuple[Tier, TierNode, UnifiedLog]:
    """Return a log of six segments, whose first five are to be copied by a node that has not started."""
    tier, disk = Tier(), MemoryDisk()
    log = filled(disk, config, SIX_SEGMENTS)
    assert len(log.bases) == 6
    return tier, TierNode(tier, disk=disk), log
