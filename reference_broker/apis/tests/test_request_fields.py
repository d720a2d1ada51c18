"""Each field of a request reaches its handler in every version, and is read there; exceptions have a reason."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from reference_broker.apis.registry import MODULES
from reference_broker.wire import messages, version_conversions
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.schema import schema_fields

ROOM = Path(__file__).resolve().parents[2]
BY_HAND = (ApiKey.PRODUCE, ApiKey.FETCH)
"""Their codecs and bodies are written by hand."""
READ_BY = {
    **dict.fromkeys((ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH), ("quorum/messages.py",)),
    ApiKey.FETCH_SNAPSHOT: ("quorum/snapshots/messages.py",),
    **dict.fromkeys((ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS), ("apis/configs/altering.py",)),
}
"""Where the fields of an API are read, beside its own file."""
WITHOUT_AUTHORIZER = (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
"""Without an authorizer their response is SECURITY_DISABLED."""
AT_ONCE = "the controller responds when the change is committed, and nothing waits for other brokers"
FIXED_VOTERS = "the voters are fixed, and known by ID and address (no KIP-853)"
ONE_DIRECTORY = "a node has one log directory, and ends without it (no KIP-858)"
UNREAD = {
    ("CreateTopics", "timeout"): AT_ONCE,
    ("DeleteTopics", "timeout"): AT_ONCE,
    ("CreatePartitions", "timeout"): AT_ONCE,
    ("ElectLeaders", "timeout"): AT_ONCE,
    ("UpdateFeatures", "timeout"): AT_ONCE,
    ("OffsetFetch", "groups.member_id"): "of consumer groups of KIP-848 only; Kafka's classic groups ignore it",
    ("OffsetFetch", "groups.member_epoch"): "as the member's ID",
    ("OffsetForLeaderEpoch", "replica_id"): "Kafka does not read it either",
    ("Vote", "topics.partitions.voter_directory_id"): FIXED_VOTERS,
    ("Vote", "topics.partitions.replica_directory_id"): FIXED_VOTERS,
    ("BeginQuorumEpoch", "topics.partitions.voter_directory_id"): FIXED_VOTERS,
    ("BeginQuorumEpoch", "leader_endpoints"): FIXED_VOTERS,
    ("EndQuorumEpoch", "topics.partitions.preferred_candidates.candidate_directory_id"): FIXED_VOTERS,
    ("EndQuorumEpoch", "leader_endpoints"): FIXED_VOTERS,
    ("FetchSnapshot", "topics.partitions.replica_directory_id"): FIXED_VOTERS,
    ("BrokerRegistration", "is_migrating_zk_broker"): "there is no ZooKeeper",
    ("BrokerHeartbeat", "offline_log_dirs"): ONE_DIRECTORY,
    ("BrokerHeartbeat", "cordoned_log_dirs"): ONE_DIRECTORY,
}


def _paths(layout: type, before: str = "") -> Iterator[str]:
    for field in schema_fields(layout):
        yield f"{before}{field.name}"
        if field.struct is not None:
            yield from _paths(field.struct, f"{before}{field.name}.")


@cache
def _read_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute))


def _unread(api_key: ApiKey) -> set[tuple[str, str]]:
    module = f"apis/{MODULES[api_key].replace('.', '/')}.py"
    read = frozenset[str]().union(*(_read_in(ROOM / each) for each in (module, *READ_BY.get(api_key, ()))))
    paths = _paths(messages.body_class(api_key, "request"))
    found = {(api_name(api_key), path) for path in paths if path.rpartition(".")[2] not in read}
    # A handler that does not read a struct does not read its fields.
    return {(name, each) for name, each in found if (name, each.rpartition(".")[0]) not in found}


SERVED = [ApiKey(module) for module in MODULES if module in VERSIONS and module not in BY_HAND]


def test_each_field_of_a_request_is_read_or_has_a_reason() -> None:
    read = [each for each in SERVED if each not in WITHOUT_AUTHORIZER]
    assert set().union(*map(_unread, read)) == UNREAD.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("api_key", SERVED, ids=api_name)
def test_no_version_has_a_field_that_its_body_lacks(api_key: ApiKey, direction: messages.Direction) -> None:
    changes = version_conversions.REQUESTS if direction == "request" else version_conversions.RESPONSES
    body = {*_paths(messages.body_class(api_key, direction))}
    first, last, *_ = VERSIONS[api_key]
    for version in range(first, last + 1):
        if (api_key, version) not in changes:
            layout = messages._body_and_wire(api_key, version, direction)[1]
            assert {*_paths(layout)} <= body, version
