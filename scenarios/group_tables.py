"""``[[load.groups]]`` and ``[load.mirror]``: members of consumer groups, and the mirror to a second cluster."""

from scenarios.fields import Reader
from scenarios.model import Groups, Mirror
from scenarios.vocabulary import GROUP_PROTOCOLS, METADATA_SOURCES, OFFSET_PLACES, RESETS


def read_groups(reader: Reader) -> Groups:
    """Raises ScenarioError."""
    count = reader.integer("count", low=1)
    stay_s = reader.number("stay_s", 0.0, low=0.0)
    groups = Groups(
        name=reader.text("name"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        topics=reader.texts("topics"),
        protocol=reader.text("protocol", "eager", allowed=GROUP_PROTOCOLS),
        metadata_epoch=reader.boolean("metadata_epoch", True),
        leader_epochs=reader.boolean("leader_epochs", False),
        reset=reader.text("reset", "earliest", allowed=RESETS),
        commit_interval_ms=reader.integer("commit_interval_ms", 500, low=1),
        static=reader.boolean("static", False),
        offsets=reader.text("offsets", "kafka", allowed=OFFSET_PLACES),
        metadata_from=reader.node("metadata_from", "any", METADATA_SOURCES),
        metadata_interval_ms=reader.integer("metadata_interval_ms", 1000, low=1),
        session_timeout_ms=reader.integer("session_timeout_ms", 6000, low=1),
        rebalance_timeout_ms=reader.integer("rebalance_timeout_ms", 10_000, low=1),
        heartbeat_interval_ms=reader.integer("heartbeat_interval_ms", 500, low=1),
        max_wait_ms=reader.integer("max_wait_ms", 100, low=0),
        poll_interval_ms=reader.integer("poll_interval_ms", 100, low=0),
        max_bytes=reader.integer("max_bytes", 1 << 20, low=1),
        stay_s=stay_s,
        sim_stay_s=reader.number("sim_stay_s", stay_s, low=0.0),
    )
    reader.end()
    _fits(reader, groups)
    return groups


def _fits(reader: Reader, groups: Groups) -> None:
    if not groups.topics:
        raise reader.refusal("topics", "is empty; name at least one topic")
    if groups.heartbeat_interval_ms >= groups.session_timeout_ms:
        raise reader.refusal("heartbeat_interval_ms", "must be less than session_timeout_ms, or no member stays")
    if groups.protocol == "assigned" and groups.static:
        raise reader.refusal("protocol", "is 'assigned': without membership there is no static one")


def read_mirror(reader: Reader) -> Mirror:
    """Raises ScenarioError."""
    count = reader.integer("count", 1, low=1)
    mirror = Mirror(
        topic=reader.text("topic"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        metadata_epoch=reader.boolean("metadata_epoch", True),
        leader_epochs=reader.boolean("leader_epochs", False),
        reset=reader.text("reset", "earliest", allowed=RESETS),
        commit_interval_ms=reader.integer("commit_interval_ms", 500, low=1),
        metadata_from=reader.node("metadata_from", "alternating", METADATA_SOURCES),
        metadata_interval_ms=reader.integer("metadata_interval_ms", 1000, low=1),
        session_timeout_ms=reader.integer("session_timeout_ms", 6000, low=1),
        heartbeat_interval_ms=reader.integer("heartbeat_interval_ms", 500, low=1),
        poll_interval_ms=reader.integer("poll_interval_ms", 50, low=0),
    )
    reader.end()
    return mirror
