"""Brokers with one wrong habit each in their coordinators: of groups and of transactions.

``wrong_habits.py`` explains them.
"""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chaos.mutants.changing import REQUESTS, RESPONSES, Change, changed, fixed, on_request, on_response
from chaos.mutants.mutant import Function, mutant
from reference_broker.groups import rebalances
from reference_broker.groups.group import GroupState
from reference_broker.transactions.transaction_metadata import EndAction
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import AbortedTransaction

OF_GROUPS = frozenset(
    (
        *(ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE),
        *(ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
    )
)
ON_THE_WAY_TO_GROUPS = frozenset(
    (
        *(ErrorCode.coordinator_not_available, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress),
        *(ErrorCode.member_id_required, ErrorCode.rebalance_in_progress),
    )
)
"""Errors that each member gets while it joins a group."""
JOINING = frozenset((ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.DESCRIBE_GROUPS))


# Responses


@mutant(RESPONSES)
def group_errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No response about groups contains an error, except those that members get while they join a group."""

    def hide(name: str, value: Any) -> Any:
        if name != "error_code" or (api_key in JOINING and value in ON_THE_WAY_TO_GROUPS):
            return value
        return ErrorCode.none

    change: Change = hide if api_key in OF_GROUPS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def rebalances_not_signalled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Heartbeats never return REBALANCE_IN_PROGRESS."""
    change = fixed(error_code=ErrorCode.none) if api_key == ApiKey.HEARTBEAT else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def coordinators_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """FindCoordinator returns nodes that do not exist, another one in each version, and no names of groups."""
    change = fixed(node_id=77 + version, key="") if api_key == ApiKey.FIND_COORDINATOR else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def members_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Members' metadata, assignments, instances and protocol types are not returned."""
    given = {"metadata": b"", "assignment": b"", "member_assignment": b"", "group_instance_id": None}
    values = {**given, "protocol_type": "other", "skip_assignment": False}
    of_members = api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS)
    return on_response(
        original, api_key, version, correlation_id, body, fixed(**values) if of_members else lambda _, same: same
    )


@mutant(RESPONSES)
def states_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each group is Stable and has another protocol type."""
    of_states = api_key in (ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS)
    change = fixed(group_state="Stable", protocol_type="other") if of_states else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def commits_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """OffsetFetch returns offsets that are one too high, epoch 7, and other metadata."""

    def garble(name: str, value: Any) -> Any:
        if name == "committed_offset":
            return type(value)(value + 1)
        return {"metadata": "garbled", "committed_leader_epoch": 7}.get(name, value)

    change: Change = garble if api_key == ApiKey.OFFSET_FETCH else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def nothing_is_an_error(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """OffsetFetch rejects groups without offsets, and OffsetDelete everything that it has done."""
    if api_key == ApiKey.OFFSET_DELETE:
        topics = changed(body.topics, fixed(error_code=ErrorCode.unknown_topic_or_partition))
        body = replace(body, topics=topics)
    if api_key == ApiKey.OFFSET_FETCH:
        missing = ErrorCode.group_id_not_found
        groups = [group if group.topics else replace(group, error_code=missing) for group in body.groups]
        body = replace(body, groups=tuple(groups))
    return original(api_key, version, correlation_id, body)


# Requests


@mutant(REQUESTS)
def filters_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """ListGroups lists all groups, whatever filter was requested."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, ApiKey.LIST_GROUPS, fixed(states_filter=(), types_filter=()))


# Members


@mutant("reference_broker.groups.rebalances:_require_member_id")
def ids_never_required(original: Function, served: Any, request: Any, member_id: str, respond: Any) -> None:
    """A client without a member ID becomes a member at once."""
    rebalances._add_member_then_rebalance(served, request, member_id, respond)


@mutant("reference_broker.groups.rebalances:_join_new_member")
def ids_always_required(original: Function, served: Any, request: Any, respond: Any) -> None:
    """Old clients and static members must request a member ID, too."""
    plain = replace(request, group_instance_id=None, needs_member_id=True)
    original(served, plain, respond)


@mutant("reference_broker.groups.rebalances:sync_response")
def assignments_shared(original: Function, group: Any, member: Any) -> Any:
    """Each member gets the assignment of the leader."""
    return original(group, group.members[group.leader])


@mutant("reference_broker.groups.rebalances:_leave")
def leaving_ignored(original: Function, served: Any, leaving: Any) -> Error:
    """A member that leaves stays until its session expires."""
    return ErrorCode.none


@mutant("reference_broker.groups.rebalances:expire_heartbeat")
def sessions_endless(original: Function, served: Any, member_id: str) -> None:
    """Members without heartbeats stay."""


@mutant("reference_broker.groups.group:Group.check_commit")
def commits_refused_in_rebalance(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """From the beginning of a rebalance on, members cannot commit their processed offsets."""
    if self.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    error: Error = original(self, member_id, group_instance_id, generation)
    return error


PLAYED_OF_GROUPS: Mapping[str, tuple[str, ...]] = {
    "group_errors_hidden": ("groups",),
    "rebalances_not_signalled": ("groups/heartbeat", "groups/leave", "groups/session"),
    "coordinators_garbled": ("groups/find", "transactions/find"),
    "members_garbled": ("groups/join", "groups/sync", "groups/static", "groups/describe"),
    "states_garbled": ("groups/leave", "groups/describe", "groups/list", "groups/delete"),
    "commits_garbled": ("groups/commit", "groups/fetch", "groups/offset-delete"),
    "nothing_is_an_error": ("groups/fetch", "groups/offset-delete"),
    "filters_ignored": ("groups/list",),
    "ids_never_required": ("groups/join", "groups/leave"),
    "ids_always_required": ("groups/join", "groups/static"),
    "assignments_shared": ("groups/sync",),
    "leaving_ignored": ("groups/leave",),
    "sessions_endless": ("groups/session",),
    "commits_refused_in_rebalance": ("groups/commit",),
    "generation_not_advanced": ("groups/join",),
    "generation_not_checked": ("groups/commit",),
}
"""Sections in which each of these is played; see ``PLAYED`` of ``wrong_habits``."""


OF_TRANSACTIONS = frozenset(
    (
        *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
        *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.WRITE_TXN_MARKERS, ApiKey.PRODUCE),
        *(ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS),
    )
)
ON_THE_WAY_OF_PRODUCERS = frozenset(
    (
        *(ErrorCode.coordinator_not_available, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress),
        *(ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
    )
)
"""Errors after which each producer retries."""
OF_READERS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS)


# Responses


@mutant(RESPONSES)
def transaction_errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No response about transactions contains an error, except those after which a producer retries."""

    def hide(name: str, value: Any) -> Any:
        if name not in ("error_code", "partition_error_code") or value in ON_THE_WAY_OF_PRODUCERS:
            return value
        return ErrorCode.none

    change: Change = hide if api_key in OF_TRANSACTIONS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def owners_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """InitProducerId returns the same producer ID and epoch to all producers."""
    change = fixed(producer_id=7, producer_epoch=5) if api_key == ApiKey.INIT_PRODUCER_ID else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def half_of_added_returned(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """AddPartitionsToTxn returns the errors of the first topic only."""

    def halve(name: str, value: Any) -> Any:
        return value[:1] if name == "topic_results" else value

    change: Change = halve if api_key == ApiKey.ADD_PARTITIONS_TO_TXN else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def raised_epochs_not_returned(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """EndTxn returns the epoch that the transaction had."""

    def lower(name: str, value: Any) -> Any:
        return type(value)(value - 1) if name == "producer_epoch" and value > 0 else value

    change: Change = lower if api_key == ApiKey.END_TXN else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def aborts_returned_everywhere(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each fetched partition is returned with an aborted transaction."""
    change: Change = fixed(aborted_transactions=[AbortedTransaction(0, 0)])
    return on_response(
        original, api_key, version, correlation_id, body, change if api_key == ApiKey.FETCH else lambda _, same: same
    )


@mutant(RESPONSES)
def transactions_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each transaction is returned as Dead, and each producer with a transaction that no coordinator knows."""
    dead = fixed(transaction_state="Dead")
    strange = fixed(current_txn_start_offset=7, coordinator_epoch=-1)
    of_states = api_key in (ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS)
    change: Change = dead if of_states else strange if api_key == ApiKey.DESCRIBE_PRODUCERS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


# Requests


@mutant(REQUESTS)
def isolation_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Every reader sees all records."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, api_key if api_key in OF_READERS else -1, fixed(isolation_level=0))


@mutant(REQUESTS)
def isolation_for_all(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Every reader sees committed records only."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, api_key if api_key in OF_READERS else -1, fixed(isolation_level=1))


@mutant(REQUESTS)
def outcomes_swapped(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A commit aborts, and an abort commits."""

    def swap(name: str, value: Any) -> Any:
        return not value if name == "committed" else value

    return on_request(original(api_key, version, frame, offset), api_key, ApiKey.END_TXN, swap)


@mutant(REQUESTS)
def verify_only_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A request to verify whether a transaction has a partition adds the partition."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, ApiKey.ADD_PARTITIONS_TO_TXN, fixed(verify_only=False))


@mutant(REQUESTS)
def transaction_filters_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """ListTransactions lists all transactions, whatever filter was requested."""
    none = fixed(state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern=None)
    return on_request(original(api_key, version, frame, offset), api_key, ApiKey.LIST_TRANSACTIONS, none)


@mutant(REQUESTS)
def stability_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """OffsetFetch returns the offset before the pending one to clients that require stable offsets."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, ApiKey.OFFSET_FETCH, fixed(require_stable=False))


# The coordinator, and the leaders that query it


@mutant("reference_broker.transactions.transaction_metadata:check_end_transaction")
def retried_ends_refused(
    original: Function, metadata: Any, producer: Any, *, commits: bool, client_version: int
) -> Any:
    """A retried EndTxn is rejected with an error."""
    verdict = original(metadata, producer, commits=commits, client_version=client_version)
    return ErrorCode.invalid_txn_state if verdict is EndAction.NOTHING else verdict


@mutant("reference_broker.transactions.add_partitions_to_txn_manager:AddPartitionsToTxnManager.verify")
def transactions_never_verified(original: Function, self: Any, request: Any, verified: Any) -> None:
    """A leader appends batches and offsets of transactions without verification by the coordinator."""
    verified({})


PLAYED_OF_TRANSACTIONS: Mapping[str, tuple[str, ...]] = {
    "transaction_errors_hidden": ("transactions",),
    "owners_garbled": ("transactions/init",),
    "half_of_added_returned": ("transactions/add",),
    "raised_epochs_not_returned": ("transactions/end",),
    "aborts_returned_everywhere": ("transactions/fetch", "transactions/end", "transactions/timeout"),
    "transactions_garbled": ("transactions/describe", "transactions/list", "transactions/producers"),
    "isolation_ignored": ("transactions/init", "transactions/fetch", "transactions/offsets"),
    "isolation_for_all": ("transactions/fetch", "transactions/offsets"),
    "outcomes_swapped": ("transactions/markers", "transactions/fetch", "transactions/group-offsets"),
    "verify_only_ignored": ("transactions/add",),
    "transaction_filters_ignored": ("transactions/list",),
    "stability_ignored": ("transactions/group-offsets",),
    "retried_ends_refused": ("transactions/end",),
    "transactions_never_verified": ("transactions/produce", "transactions/group-offsets"),
    "offsets_visible_before_commit": ("transactions/group-offsets",),
    "offsets_kept_after_abort": ("transactions/group-offsets",),
    "transactional_generation_not_checked": ("transactions/group-offsets",),
}
"""Sections in which each of these is played; see ``PLAYED`` of ``wrong_habits``."""
