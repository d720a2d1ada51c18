"""All operations of the control API, by subject. Each is a function that the decorator declares (``operation.py``).

To add one, write it here, and run ``python -m crucible_kafka.control.page``.
"""

import inspect
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from crucible_kafka.control.operation import MAX_WAIT_S, Call, Limit, Operations, Refusal
from crucible_kafka.control.shown import (
    ClusterShown,
    Count,
    FrameShown,
    GivenValues,
    Group,
    Node,
    NodeId,
    Offset,
    ReadValue,
    Record,
    RuleShown,
    Transaction,
    Value,
    bytes_of,
    shown_value,
)
from crucible_kafka.library import Matcher, NodeHandle, Rule
from crucible_kafka.library.carrier import START_LIMIT_S
from crucible_kafka.library.judging import Guarantee, Read
from crucible_kafka.library.node_handle import LIMIT_S
from crucible_kafka.library.observation import SessionView
from crucible_kafka.library.rule_spec import Act
from crucible_kafka.library.rules import WAIT_S

operation: Final = Operations()

INT32_MAX: Final = 2**31 - 1
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
PartitionIndex: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX, description="The partition, from 0 on.")]
NodeNumber: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX, description="The node's ID, from 0 on.")]
RuleNumber: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX, description="The rule's ID.")]
Setting: TypeAlias = bool | int | float | str
Pattern: TypeAlias = Annotated[str, Meta(description="A name, or a pattern such as app-*.")]
RENAMED: Final = {"error_topic": "topic", "error_partition": "partition"}
"""Arguments of an act that have another name in Python, since there they are no fields of the match."""
COUNTS: Final = ("times", "nth", "probability", "seed", "optional")


def _node(call: Call, node: int) -> NodeHandle:
    try:
        return call.kafka.node(node)
    except ValueError as wrong:
        raise Refusal(404, str(wrong)) from wrong


def _rule(call: Call, rule: int) -> Rule:
    for shown in call.kafka.rules:
        if shown.spec.id == rule:
            return shown
    raise Refusal(404, f"There is no rule {rule}: GET /v1/rules lists those that hold.")


operation.section = "Cluster"


@operation("GET", "/cluster")
def cluster(call: Call) -> ClusterShown:
    """Return the addresses and the nodes."""
    return ClusterShown(call.kafka.bootstrap_servers, nodes(call))


@operation("POST", "/max-versions")
def max_versions(
    call: Call,
    release: Annotated[str | None, Meta(description='A release of Kafka, such as "2.8".')] = None,
    apis: Annotated[
        dict[str, int] | None, Meta(description="The highest version of each of these APIs; -1: not offered at all.")
    ] = None,
) -> None:
    """Let clients believe in an older broker. Without arguments nothing is limited any more.

    Connections that are open already keep what they have negotiated.
    """
    if release is not None and apis is not None:
        raise ValueError("release and apis are given: give one of them, or none to limit nothing.")
    with call.alone():
        call.kafka.max_versions(apis if release is None else release)


@operation("GET", "/features")
def features(call: Call) -> dict[str, int]:
    """Return the finalized levels of features, such as metadata.version."""
    return call.kafka.features()


@operation("POST", "/features")
def set_feature(
    call: Call,
    name: Name,
    level: Annotated[int, Meta(ge=0, le=32767)],
    unsafe: Annotated[bool, Meta(description="Allow a downgrade that loses metadata.")] = False,
    limit_s: Limit = LIMIT_S,
) -> None:
    """Raise or lower the finalized level of a feature, and return when every serving node knows it."""
    call.kafka.set_feature(name, level, unsafe, limit_s)


@operation("POST", "/snapshot")
def snapshot(call: Call, limit_s: Limit = LIMIT_S) -> None:
    """Let each serving node make a snapshot of the metadata that is committed now."""
    call.kafka.snapshot(limit_s)


@operation("GET", "/controller")
def controller(call: Call, limit_s: Limit = LIMIT_S) -> NodeId:
    """Return the active controller, and wait until there is one."""
    return NodeId(call.kafka.active_controller(limit_s).id)


@operation("POST", "/controller")
def move_controller(call: Call, to: NodeNumber | None = None, limit_s: Limit = LIMIT_S) -> NodeId:
    """Let another node be the active controller: any other one, or this one."""
    if to is not None:
        _node(call, to)
    return NodeId(call.kafka.move_controller(to, limit_s))


operation.section = "Nodes"


@operation("GET", "/nodes")
def nodes(call: Call) -> list[Node]:
    """Return all nodes, also those that do not run."""
    return [Node.of(call.kafka.node(number)) for number in range(call.kafka.nodes)]


@operation("GET", "/nodes/{node}")
def node(call: Call, node: NodeNumber) -> Node:
    """Return one node."""
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/kill")
def kill(
    call: Call,
    node: NodeNumber,
    fence: Annotated[bool, Meta(description="Whether the controller fences it at once.")] = True,
    limit_s: Limit = LIMIT_S,
) -> Node:
    """End a node at once, as SIGKILL does.

    When it returns, others in sync lead its partitions. Without fence that takes broker.session.timeout.ms.
    """
    with call.alone():
        _node(call, node).kill(fence, limit_s)
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/stop")
def stop(call: Call, node: NodeNumber) -> Node:
    """End a node cleanly: others lead its partitions before it goes."""
    with call.alone():
        _node(call, node).stop()
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/restart")
def restart(
    call: Call,
    node: NodeNumber,
    in_sync: Annotated[bool, Meta(description="Whether to wait until its replicas are in sync.")] = True,
    limit_s: Limit = START_LIMIT_S,
) -> Node:
    """Start a node again with the same data, address and rules. One that still runs is stopped cleanly first."""
    with call.alone():
        _node(call, node).restart(in_sync, limit_s)
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/pause")
def pause(call: Call, node: NodeNumber) -> Node:
    """Stop a node's work until it is resumed, as SIGSTOP does: connections stay open, and nothing is served."""
    with call.alone():
        _node(call, node).pause()
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/resume")
def resume(call: Call, node: NodeNumber) -> Node:
    """Let a paused node go on."""
    with call.alone():
        _node(call, node).resume()
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/isolate")
def isolate(call: Call, node: NodeNumber) -> Node:
    """Cut all links between this node and the others, until it is healed. Clients reach it still."""
    with call.alone():
        _node(call, node).isolate()
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/heal")
def heal(call: Call, node: NodeNumber) -> Node:
    """Mend the links of a node that is isolated."""
    with call.alone():
        _node(call, node).heal()
    return Node.of(_node(call, node))


@operation("POST", "/nodes/{node}/slow-disk")
def slow_disk(
    call: Call, node: NodeNumber, by_ms: Annotated[int, Meta(ge=0, le=60_000, description="Milliseconds.")]
) -> None:
    """Make each sync of a node's disk take longer, until it is called with 0 or the node restarts."""
    _node(call, node).slow_disk(by_ms)


@operation("POST", "/nodes/{node}/full-disk")
def full_disk(call: Call, node: NodeNumber, full: bool = True) -> None:
    """Let a node's disk refuse what needs space, until it is called with false or the node restarts."""
    _node(call, node).full_disk(full)


@operation("POST", "/nodes/{node}/clock-offset")
def clock_offset(call: Call, node: NodeNumber, milliseconds: Annotated[int, Meta(ge=-(10**13), le=10**13)]) -> None:
    """Set a node's wall clock ahead of the machine's, or behind it, until the node restarts."""
    _node(call, node).clock_offset(milliseconds)


@operation("POST", "/nodes/{node}/advertise")
def advertise(call: Call, node: NodeNumber, host: Name, port: Annotated[int, Meta(ge=1, le=65_535)]) -> None:
    """Put another address of a node into responses to clients, such as that of a proxy in front of it."""
    _node(call, node)
    with call.alone():
        call.kafka.advertise(host, port, node)


@operation("GET", "/nodes/{node}/metrics")
def metrics_of_node(call: Call, node: NodeNumber) -> dict[str, int]:
    """Return a node's metrics by Kafka's MBean names; of histograms the count."""
    return _node(call, node).metrics()


@operation("GET", "/nodes/{node}/logs")
def logs_of_node(call: Call, node: NodeNumber) -> list[str]:
    """Return a node's log of all its incarnations. Each line is a JSON object."""
    return _node(call, node).log_lines()


operation.section = "Topics"


@operation("POST", "/topics", status=201)
def create_topic(
    call: Call,
    name: Name,
    partitions: Annotated[int, Meta(ge=1, le=10_000)] = 1,
    replicas: Annotated[int, Meta(ge=1, le=5)] | None = None,
    config: Annotated[dict[str, Setting] | None, Meta(description="Settings under Kafka's names.")] = None,
    limit_s: Limit = LIMIT_S,
) -> None:
    """Create a topic, and return when each partition has a leader that every running node knows.

    Without replicas each node has one, at most 3.
    """
    call.kafka.create_topic(name, partitions, replicas, config, limit_s)


@operation("GET", "/topics/{topic}/records")
def records(call: Call, topic: Name, partition: PartitionIndex | None = None, limit_s: Limit = LIMIT_S) -> list[Record]:
    """Return the records in the log of a topic, by partition and offset, as its leaders have them.

    Records of open and aborted transactions are among them, not committed.
    """
    return [Record.of(record) for record in call.kafka.records(topic, partition, limit_s)]


@operation("GET", "/topics/{topic}/partitions/{partition}/leader")
def leader(call: Call, topic: Name, partition: PartitionIndex) -> NodeId:
    """Return the node that leads a partition."""
    return NodeId(call.kafka.leader(topic, partition))


@operation("POST", "/topics/{topic}/partitions/{partition}/leader")
def move_leader(
    call: Call, topic: Name, partition: PartitionIndex, to: NodeNumber | None = None, limit_s: Limit = LIMIT_S
) -> NodeId:
    """Let another replica in sync lead a partition: the next one, or this one. Return when every node knows it."""
    if to is not None:
        _node(call, to)
    return NodeId(call.kafka.move_leader(topic, partition, to, limit_s))


@operation("POST", "/topics/{topic}/partitions/{partition}/isr")
def shrink_isr(
    call: Call,
    topic: Name,
    partition: PartitionIndex,
    to: Annotated[list[NodeNumber], Meta(description="The replicas that stay in sync.")],
    limit_s: Limit = LIMIT_S,
) -> None:
    """Take replicas out of the in-sync ones. One that is taken out joins again as soon as it has caught up."""
    call.kafka.shrink_isr(topic, partition, to, limit_s)


@operation("POST", "/topics/{topic}/partitions/{partition}/delete-records")
def delete_records(
    call: Call,
    topic: Name,
    partition: PartitionIndex,
    before: Annotated[int, Meta(ge=-1, le=2**63 - 1, description="The offset; -1 for all records.")] = -1,
    limit_s: Limit = LIMIT_S,
) -> Offset:
    """Delete the records below an offset, and return the new start of the log."""
    return Offset(call.kafka.delete_records(topic, partition, before, limit_s))


@operation("POST", "/topics/{topic}/partitions/{partition}/truncate")
def truncate(
    call: Call,
    topic: Name,
    partition: PartitionIndex,
    to: Annotated[int, Meta(ge=0, le=2**63 - 1, description="The offset at which the log is to end.")],
    limit_s: Limit = LIMIT_S,
) -> Offset:
    """Cut a log back to an offset, as after a power failure of the last replica in sync, and return its new end.

    The leader leads in a new epoch, and the followers truncate their logs to it. A consumer that has read beyond the
    new end gets OFFSET_OUT_OF_RANGE, or finds that its epoch diverges (KIP-320).
    """
    return Offset(call.kafka.truncate(topic, partition, to, limit_s))


@operation("POST", "/topics/{topic}/roll")
def roll(call: Call, topic: Name, partition: PartitionIndex | None = None, limit_s: Limit = LIMIT_S) -> None:
    """Begin a new segment in each replica of a partition, or of all partitions."""
    call.kafka.roll(topic, partition, limit_s)


@operation("POST", "/topics/{topic}/compact")
def compact(call: Call, topic: Name, partition: PartitionIndex | None = None, limit_s: Limit = LIMIT_S) -> None:
    """Compact all that each replica has now: of each key only the newest record stays."""
    call.kafka.compact(topic, partition, limit_s)


@operation("POST", "/topics/{topic}/expire-producer")
def expire_producer(
    call: Call,
    topic: Name,
    producer_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None,
    limit_s: Limit = LIMIT_S,
) -> Count:
    """Let the replicas of a topic forget an idempotent producer, or all. One with an open transaction stays."""
    return Count(call.kafka.expire_producer(topic, producer_id, limit_s))


operation.section = "Groups, transactions and sessions"


@operation("GET", "/coordinator")
def coordinator(
    call: Call, group: Name | None = None, transactional_id: Name | None = None, limit_s: Limit = LIMIT_S
) -> NodeId:
    """Return the node that coordinates a group or a transactional ID."""
    return NodeId(call.kafka.coordinator(group, transactional_id=transactional_id, limit_s=limit_s))


@operation("POST", "/coordinator")
def move_coordinator(
    call: Call,
    group: Name | None = None,
    transactional_id: Name | None = None,
    to: NodeNumber | None = None,
    limit_s: Limit = LIMIT_S,
) -> NodeId:
    """Let another node coordinate a group or a transactional ID, and return when it has loaded its past."""
    if to is not None:
        _node(call, to)
    return NodeId(call.kafka.move_coordinator(group, transactional_id=transactional_id, to=to, limit_s=limit_s))


@operation("GET", "/groups")
def groups(call: Call) -> list[Group]:
    """Return the consumer groups with their members and committed offsets."""
    return [Group.of(group) for group in call.kafka.groups()]


@operation("GET", "/transactions")
def transactions(call: Call) -> list[Transaction]:
    """Return the transactional IDs and the states of their transactions."""
    return [Transaction.of(transaction) for transaction in call.kafka.transactions()]


@operation("POST", "/transactions/expire")
def expire_transactional_id(call: Call, transactional_id: Name, limit_s: Limit = LIMIT_S) -> None:
    """Let an idle transactional ID expire. Its producer gets INVALID_PRODUCER_ID_MAPPING."""
    call.kafka.expire_transactional_id(transactional_id, limit_s)


@operation("GET", "/sessions")
def sessions(call: Call) -> list[SessionView]:
    """Return the incremental fetch sessions of consumers on all nodes."""
    return call.kafka.sessions()


@operation("POST", "/sessions/evict")
def evict_sessions(call: Call, client_id: Pattern = "*", limit_s: Limit = LIMIT_S) -> Count:
    """Close the fetch sessions of consumers that fit. The next Fetch of each gets FETCH_SESSION_ID_NOT_FOUND."""
    return Count(call.kafka.evict_sessions(client_id, limit_s))


operation.section = "Rules"


@operation("POST", "/rules", status=201)
def add_rule(
    call: Call,
    act: Annotated[Act, Meta(description="What to do to the requests that match, or to their responses.")],
    api: Annotated[str | list[str], Meta(description="Kafka's name of an API, or several; * for all.")] = "*",
    client_id: Pattern | None = None,
    versions: Annotated[
        int | tuple[int, int] | None, Meta(description="A version of the API, or the lowest and the highest.")
    ] = None,
    group: Pattern | None = None,
    topic: Pattern | None = None,
    partition: Number | None = None,
    transactional_id: Pattern | None = None,
    transaction: Annotated[
        str | None, Meta(description="The state of the transactional ID at its coordinator, such as Ongoing.")
    ] = None,
    node: NodeNumber | None = None,
    connection: Annotated[int | None, Meta(description="A number as in a frame.")] = None,
    session: Annotated[
        bool | int | str | None,
        Meta(description="Of a Fetch: whether it is in a session, or which; or new, incremental, closing."),
    ] = None,
    sender: Annotated[Literal["client", "node", "any"], Meta(description="Who sends the requests.")] = "client",
    times: Annotated[
        int | None, Meta(description="How often it acts: once if nth is given, else without limit.")
    ] = None,
    nth: Annotated[int | None, Meta(description="The first matching request that it acts on, from 1 on.")] = None,
    probability: Annotated[float | None, Meta(description="The share of matching requests that it acts on.")] = None,
    seed: Annotated[int | None, Meta(description="Says on which, with a probability.")] = None,
    optional: Annotated[bool, Meta(description="Whether /v1/rules/check lets it pass if it never fired.")] = False,
    seconds: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None, Meta(description="Of delay_request and delay_response.")
    ] = None,
    within_s: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None, Meta(description="Of reorder (default 1).")
    ] = None,
    handled: Annotated[
        bool | None, Meta(description="Of hang and respond_error: whether the node handles the request first.")
    ] = None,
    error: Annotated[str | None, Meta(description="Of respond_error: Kafka's name, such as NOT_COORDINATOR.")] = None,
    error_topic: Annotated[str | None, Meta(description="Of respond_error: the topic that gets the error.")] = None,
    error_partition: Annotated[
        int | None, Meta(description="Of respond_error: the partition that gets the error, and not the request.")
    ] = None,
    size_bytes: Annotated[int | None, Meta(description="Of truncate_response: the bytes that are sent.")] = None,
    position: Annotated[
        int | None, Meta(description="Of damage_response: the byte that is inverted; negative: from the end.")
    ] = None,
    milliseconds: Annotated[Number | None, Meta(description="Of throttle.")] = None,
) -> RuleShown:
    """Add a rule that holds from the response on, until it is deleted.

    drop_request: the node never sees the request, and the connection breaks. drop_response: the node has handled it,
    and the connection breaks before the client knows. hang: no response, and the connection stays open. close_before
    and close_after: the connection is closed instead of handling the request, or after the response. delay_request and
    delay_response: later. reorder: hold the request until another one that matches was handled. duplicate_request:
    the node handles it twice. respond_error: an error by Kafka's name. truncate_response: only the first bytes, then
    the connection is closed. damage_response: one byte is inverted. throttle: the response says that the client was
    throttled.
    """
    match: dict[str, Any] = {
        "client_id": client_id,
        "versions": versions,
        "group": group,
        "topic": topic,
        "partition": partition,
        "transactional_id": transactional_id,
        "transaction": transaction,
        "node": node,
        "connection": connection,
        "session": session,
        "sender": sender,
    }
    counts: dict[str, Any] = dict(zip(COUNTS, (times, nth, probability, seed, optional), strict=True))
    of_act = {
        "seconds": seconds,
        "within_s": within_s,
        "handled": handled,
        "error": error,
        "error_topic": error_topic,
        "error_partition": error_partition,
        "size_bytes": size_bytes,
        "position": position,
        "milliseconds": milliseconds,
    }
    with call.alone():
        matcher = call.kafka.on(api, **match, **{name: value for name, value in counts.items() if value is not None})
        rule = _act(matcher, act, {name: value for name, value in of_act.items() if value is not None})
    return RuleShown.of(rule)


def _act(matcher: Matcher, act: str, given: dict[str, Any]) -> Rule:
    """Make the rule. Raise ValueError for arguments that the act does not have, or needs."""
    method = getattr(matcher, act)
    parameters = [each for each in inspect.signature(method).parameters.values() if each.name != "counts"]
    api_names = {python: name for name, python in RENAMED.items()}
    known = {api_names.get(each.name, each.name): each for each in parameters}
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no arguments"
            raise ValueError(f"{act} has no {name}: {takes}.")
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise ValueError(f"{act} needs {name}: give it.")
    rule: Rule = method(**{RENAMED.get(name, name): value for name, value in given.items()})
    return rule


@operation("GET", "/rules")
def rules(call: Call) -> list[RuleShown]:
    """Return the rules that hold now, in order of creation."""
    return [RuleShown.of(shown) for shown in call.kafka.rules]


@operation("DELETE", "/rules")
def clear_rules(call: Call) -> None:
    """Remove all rules, whether they acted or not."""
    with call.alone():
        call.kafka.clear_rules()


@operation("POST", "/rules/check")
def check_rules(call: Call) -> None:
    """Fail with 422 if a rule that is not optional has never acted, and with 409 if a node has crashed. The end of a
    test is the place for it."""
    call.kafka.check_nodes()
    call.kafka.check_rules()


@operation("GET", "/rules/{rule}")
def rule(call: Call, rule: RuleNumber) -> RuleShown:
    """Return one rule."""
    return RuleShown.of(_rule(call, rule))


@operation("DELETE", "/rules/{rule}")
def remove_rule(call: Call, rule: RuleNumber) -> RuleShown:
    """Remove a rule, and return it with what it did."""
    found = _rule(call, rule)
    with call.alone():
        found.remove()
    return RuleShown.of(found)


@operation("POST", "/rules/{rule}/wait")
def wait_fired(
    call: Call,
    rule: RuleNumber,
    times: Annotated[int, Meta(ge=1, le=INT32_MAX)] = 1,
    timeout_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="The longest wait, in seconds.")] = WAIT_S,
) -> RuleShown:
    """Wait until a rule has acted so often. Fail with 504 after the time."""
    found = _rule(call, rule)
    found.wait_fired(times, timeout_s)
    return RuleShown.of(found)


@operation("POST", "/rules/{rule}/assert-fired")
def assert_fired(
    call: Call, rule: RuleNumber, times: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None
) -> RuleShown:
    """Fail with 422 unless a rule has acted: so often, or at least once. The sentence also has what came instead."""
    found = _rule(call, rule)
    found.assert_fired(times)
    return RuleShown.of(found)


operation.section = "Observation"


@operation("GET", "/frames")
def frames(
    call: Call,
    api: Pattern = "*",
    client_id: Pattern = "*",
    node: NodeNumber | None = None,
    direction: Literal["request", "response"] | None = None,
    of_nodes: Annotated[bool, Meta(description="Those that nodes sent to each other.")] = False,
    last: Annotated[int, Meta(ge=1, le=100_000, description="The most frames that are returned.")] = 1000,
) -> list[FrameShown]:
    """Return the newest requests and responses, decoded, by time."""
    return [
        FrameShown(
            frame.at_s,
            frame.direction,
            frame.node,
            frame.connection,
            frame.peer,
            frame.client_id,
            frame.api,
            frame.version,
            frame.correlation_id,
            frame.fault,
            str(frame),
            frame.body,
        )
        for frame in call.kafka.frames(api, client_id, node, direction, of_nodes)[-last:]
    ]


@operation("GET", "/metrics")
def metrics(call: Call) -> dict[str, dict[str, int]]:
    """Return the metrics of each running node, by node ID and Kafka's MBean name."""
    return {str(number): metric for number, metric in call.kafka.metrics().items()}


@operation("GET", "/logs")
def logs(call: Call) -> list[str]:
    """Return the logs of all nodes. Each line is a JSON object."""
    return call.kafka.log_lines()


operation.section = "Judging"


@operation("POST", "/values")
def values(
    call: Call,
    count: Annotated[int, Meta(ge=0, le=100_000)],
    writer: Name | None = None,
    first: Annotated[int, Meta(ge=0, le=2**53)] = 0,
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 20)] = 0,
) -> list[Value]:
    """Return values that prove themselves: each has its writer, its number and a checksum.

    Without a writer it has a random name, so that no other call makes the same values.
    """
    return [shown_value(value) for value in call.kafka.values(count, writer, first, size_bytes)]


@operation("POST", "/assert-delivered")
def assert_delivered(
    call: Call,
    sent: Annotated[list[Value], Meta(description="What was sent, in order.")],
    read: Annotated[list[str | ReadValue], Meta(description="What was read, in order: text, or with its place.")],
    unacknowledged: Annotated[
        list[Value] | None, Meta(description="Those of sent that were not acknowledged: they may be read or not.")
    ] = None,
    guarantee: Guarantee = "exactly-once",
) -> None:
    """Fail with 422 and the first violation of a guarantee, with its place in the logs and the frames around it.

    at-least-once: each acknowledged value was read, and nothing that was not sent. exactly-once: also nothing was read
    twice. in-order: as at-least-once, and the first reads of a writer's values come in the order of sending, in each
    partition if reads have one.
    """
    given = GivenValues([bytes_of(value) for value in sent], {bytes_of(each) for each in unacknowledged or ()})
    found = [
        Read(each.encode())
        if isinstance(each, str)
        else Read(bytes_of(each.value), each.topic, each.partition, each.offset)
        for each in read
    ]
    call.kafka.assert_delivered(given, found, guarantee)
