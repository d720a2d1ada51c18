"""``[load]`` and the tables below it: topics, fetchers, producers, admins, readers of the metadata."""

from scenarios.fields import Reader
from scenarios.group_tables import read_groups, read_mirror
from scenarios.model import Admins, Fetchers, Load, MetadataReaders, Producers, Topic
from scenarios.vocabulary import ADMIN_OPERATIONS, BEHAVIOURS, FETCHER_REVISIONS


def read_load(reader: Reader) -> Load:
    """Raises ScenarioError."""
    seconds = reader.number("seconds", low=0.1)
    idle_appends_s = reader.number("idle_appends_s", 0.0, low=0.0)
    load = Load(
        seconds=seconds,
        sim_seconds=reader.number("sim_seconds", seconds, low=0.1),
        topics=tuple(_topic(each) for each in reader.tables("topics")),
        fetchers=tuple(_fetchers(each) for each in reader.tables("fetchers")),
        producers=tuple(_producers(each) for each in reader.tables("producers")),
        idle_appends_s=idle_appends_s,
        sim_idle_appends_s=reader.number("sim_idle_appends_s", idle_appends_s, low=0.0),
        request_timeout_ms=reader.integer("request_timeout_ms", 2000, low=1),
        admins=tuple(_admins(each) for each in reader.tables("admins")),
        metadata_readers=tuple(_metadata_readers(each) for each in reader.tables("metadata_readers")),
        groups=tuple(read_groups(each) for each in reader.tables("groups")),
        mirror=read_mirror(reader.table("mirror")) if reader.has("mirror") else None,
    )
    reader.end()
    return load


def _topic(reader: Reader) -> Topic:
    topic = Topic(
        name=reader.text("name"),
        partitions=reader.integer("partitions", low=1, high=10_000),
        config=reader.table("config", required=False).pairs(),
        replicas=reader.integer("replicas", 1, low=1, high=9),
    )
    reader.end()
    return topic


def _fetchers(reader: Reader) -> Fetchers:
    count = reader.integer("count", low=1)
    group = Fetchers(
        name=reader.text("name", "fetcher"),
        behaviour=reader.text("behaviour", allowed=BEHAVIOURS),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        topic=reader.text("topic"),
        partitions=reader.integer("partitions", low=0),
        poll_interval_ms=reader.integer("poll_interval_ms", 100, low=0),
        max_wait_ms=reader.integer("max_wait_ms", 500, low=0),
        min_bytes=reader.integer("min_bytes", 1, low=0),
        max_bytes=reader.integer("max_bytes", 8 << 20, low=1),
        partition_max_bytes=reader.integer("partition_max_bytes", 1 << 20, low=1),
        revision=reader.text("revision", "final", allowed=FETCHER_REVISIONS),
    )
    reader.end()
    return group


def _producers(reader: Reader) -> Producers:
    count = reader.integer("count", low=1)
    rate_per_s = reader.number("rate_per_s", low=0.01)
    group = Producers(
        name=reader.text("name", "producer"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        topic=reader.text("topic"),
        rate_per_s=rate_per_s,
        sim_rate_per_s=reader.number("sim_rate_per_s", rate_per_s, low=0.01),
        record_bytes=reader.integer("record_bytes", 100, low=1),
        batch_records=reader.integer("batch_records", 10, low=1),
        acks=reader.integer("acks", -1, low=-1, high=1),
        idempotent=reader.boolean("idempotent", True),
    )
    reader.end()
    return group


def _admins(reader: Reader) -> Admins:
    count = reader.integer("count", 1, low=1)
    rate_per_s = reader.number("rate_per_s", low=0.01)
    partitions = reader.integer("partitions", 1, low=1, high=100_000)
    topics_per_request = reader.integer("topics_per_request", 1, low=1, high=10_000)
    group = Admins(
        name=reader.text("name", "admin"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        rate_per_s=rate_per_s,
        sim_rate_per_s=reader.number("sim_rate_per_s", rate_per_s, low=0.01),
        partitions=partitions,
        sim_partitions=reader.integer("sim_partitions", partitions, low=1, high=100_000),
        topics_per_request=topics_per_request,
        sim_topics_per_request=reader.integer("sim_topics_per_request", topics_per_request, low=1, high=10_000),
        mix=_mix(reader.table("mix")),
    )
    reader.end()
    return group


def _mix(reader: Reader) -> tuple[tuple[str, int], ...]:
    mix = tuple((each, reader.integer(each, 0, low=0)) for each in ADMIN_OPERATIONS)
    reader.end()
    used = tuple((each, weight) for each, weight in mix if weight)
    if not used:
        raise reader.refusal(ADMIN_OPERATIONS[0], f"and all others are 0; give at least one of {_words()} a weight")
    return used


def _words() -> str:
    return ", ".join(ADMIN_OPERATIONS)


def _metadata_readers(reader: Reader) -> MetadataReaders:
    count = reader.integer("count", 1, low=1)
    group = MetadataReaders(
        name=reader.text("name", "metadata-reader"),
        count=count,
        sim_count=reader.integer("sim_count", count, low=1),
        poll_interval_ms=reader.integer("poll_interval_ms", 200, low=1),
    )
    reader.end()
    return group
