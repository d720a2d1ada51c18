"""Apache Kafka's own tools with consumer groups: the console consumer, kafka-consumer-groups, kafka-dump-log."""

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peers.kafka import ToolError
from bench.peers.node import BrokerNode
from bench.peers.tests.group_members import (
    AiokafkaMember,
    GroupMemberThread,
    KafkaPythonMember,
    LibrdkafkaMember,
    ReferenceMember,
    quiet,
    until,
)
from bench.peers.tests.java_tools import JavaTools, console_member, dump_segments
from bench.peers.tests.nodes import reference_node
from reference_broker.blocking.consumer import BlockingConsumer
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

QUICK = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "1"}
EACH = 30
LIMIT_S = 60.0


@contextmanager
def _node(folder: Path, config: Mapping[str, str] = QUICK) -> Iterator[BrokerNode]:
    with quiet(), reference_node(folder, config) as running:
        yield running


@pytest.fixture(scope="module")
def group_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerNode]:
    with _node(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.fixture
def tools(group_node: BrokerNode) -> JavaTools:
    return JavaTools(group_node.bootstrap)


def _values(first: int) -> list[str]:
    return [f"v{number}" for number in range(first, first + EACH)]


def test_console_consumer_continues_at_committed_offset(tools: JavaTools) -> None:
    tools.create_topic("console", "--partitions", "1")
    for first in (0, EACH):
        tools.produce("console", _values(first))
        assert tools.consume_as_group("console", "readers", EACH) == _values(first)
    rows = tools.group_offsets("readers")
    assert [(row.topic, row.current, row.end, row.lag) for row in rows] == [("console", 2 * EACH, 2 * EACH, 0)]


def test_groups_are_listed_described_reset_and_deleted(tools: JavaTools) -> None:
    tools.create_topic("plan", "--partitions", "2")
    tools.produce("plan", _values(0))
    tools.consume_as_group("plan", "planned", EACH)
    assert "planned" in tools.groups("--list").split()
    assert re.search(r"^planned\s+Consumer\s+Classic\s+Empty|^planned\s+Empty", tools.groups("--list", "--state"), re.M)
    state = tools.groups("--describe", "--group", "planned", "--state")
    assert re.search(r"\bEmpty\b", state)
    assert sum(offset.current for offset in tools.group_offsets("planned")) == EACH
    reset = ["--reset-offsets", "--group", "planned", "--topic", "plan", "--execute"]
    tools.groups(*reset, "--to-earliest")
    assert [offset.current for offset in tools.group_offsets("planned")] == [0, 0]
    tools.groups(*reset, "--shift-by", "5")
    assert sum(offset.lag for offset in tools.group_offsets("planned")) == EACH - sum(
        offset.current for offset in tools.group_offsets("planned")
    )
    assert len(tools.consume_as_group("plan", "planned", sum(offset.lag for offset in tools.group_offsets("planned"))))
    tools.groups("--delete-offsets", "--group", "planned", "--topic", "plan")
    assert tools.group_offsets("planned") == []
    tools.consume_as_group("plan", "planned", EACH)
    assert "Deletion of requested consumer groups ('planned') was successful" in tools.groups(
        "--delete", "--group", "planned"
    )
    assert "planned" not in tools.groups("--list").split()


def test_members_are_shown_and_a_group_in_use_is_neither_reset_nor_deleted(
    tools: JavaTools, group_node: BrokerNode
) -> None:
    tools.create_topic("busy", "--partitions", "2")
    member = LibrdkafkaMember(group_node.bootstrap, "busy", "busy", "eager", "somebody")
    member.start()
    try:
        until("it has its partitions", lambda: member.owned == 2, LIMIT_S)
        shown = tools.groups("--describe", "--group", "busy", "--members", "--verbose")
        assert re.search(r"^busy\s+somebody-\S+\s+/127.0.0.1\s+somebody\s+2\s", shown, re.M)
        assert "busy(0,1)" in re.sub(r"\s", "", shown) or "busy:0,1" in re.sub(r"\s", "", shown)
        with pytest.raises(ToolError, match=r"not empty|NonEmpty"):
            tools.groups("--delete", "--group", "busy")
        refused = tools.groups("--reset-offsets", "--group", "busy", "--topic", "busy", "--to-earliest", "--execute")
        assert "inactive" in refused
    finally:
        member.stop()


def test_java_and_every_library_in_one_group(tools: JavaTools, group_node: BrokerNode) -> None:
    tools.create_topic("mixed", "--partitions", "5")
    kinds: tuple[type[GroupMemberThread], ...] = (LibrdkafkaMember, KafkaPythonMember, AiokafkaMember, ReferenceMember)
    members = tuple(kind(group_node.bootstrap, "mixed", "mixed", "eager", kind.__name__) for kind in kinds)
    lines: list[str] = []
    with console_member(group_node.bootstrap, "mixed", "mixed") as java:
        reader = threading.Thread(target=_collect, args=(java, lines), daemon=True)
        reader.start()
        for member in members:
            member.start()
        try:
            until("each has one", lambda: [each.owned for each in members] == [1] * len(members), LIMIT_S)
            tools.produce("mixed", [f"{number}:x{number}" for number in range(200)], "none", *_KEYED)
            until("all is read", lambda: sum(len(each.read) for each in members) + len(lines) >= 200, LIMIT_S)
        finally:
            for member in members:
                member.stop()
    assert [each.failure for each in members] == [None] * len(members)
    assert lines
    assert all(each.read for each in members)


_KEYED = ("--property", "parse.key=true", "--property", "key.separator=:")


def _collect(java: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert java.stdout is not None
    lines.extend(iter(java.stdout.readline, ""))


def _commit(node: BrokerNode, group: str, offset: int, metadata_epoch: int) -> None:
    address = NodeAddress(-1, "127.0.0.1", node.port)
    where = TopicPartition("dumped", 0)
    with BlockingConsumer(ConsumerConfig((address,), GroupConfig(group, ()))) as consumer:
        consumer.assign([where])
        assert consumer.wait_for_metadata_update(-1, 0)
        consumer.partitions_for("dumped")
        consumer.commit({where: OffsetToCommit(offset, -1, metadata_epoch, "note")})


@pytest.mark.clause("M-8", "M-14")
@pytest.mark.parametrize("level", [0, 1])
def test_dump_tool_decodes_the_offsets_topic_with_either_value(tmp_path: Path, level: int) -> None:
    config = {**QUICK, "crucible.bootstrap.metadata.epoch": str(level)}
    with _node(tmp_path, config) as running:
        tools = JavaTools(running.bootstrap)
        tools.create_topic("dumped", "--partitions", "1")
        tools.produce("dumped", _values(0))
        tools.consume_as_group("dumped", "members", EACH)
        _commit(running, "simple", 7, 3)
        logs = sorted((tmp_path / "data").rglob("__consumer_offsets-0/*.log"))
        shown = dump_segments(logs, "--offsets-decoder")
    assert "Could not" not in shown
    assert "Error" not in shown
    assert re.search(r'key: \{"type":"1","data":\{"group":"simple","topic":"dumped","partition":0\}\}', shown)
    version = "4" if level else "3"
    assert f'payload: {{"version":"{version}","data":{{"offset":7,"leaderEpoch":-1,"metadata":"note"' in shown
    assert '"group":"members"' in shown
    assert '"protocolType":"consumer"' in shown
