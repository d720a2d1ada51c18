"""Mutants of consumer groups: what a coordinator checks, waits for and reads when it takes over."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.groups.storage.codec import GroupKey
from reference_broker.wire.errors import Error, ErrorCode

Function = Callable[..., Any]


def _generation_not_checked(original: Function) -> Function:
    def check(self: Any, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        error = original(self, member_id, group_instance_id, generation)
        return ErrorCode.none if error in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id) else error

    return check


def _commit_before_replicated(original: Function) -> Function:  # noqa: ARG001
    def acknowledge(self: Any, end_offset: int, written: Any) -> None:  # noqa: ARG001
        written(ErrorCode.none)

    return acknowledge


def _offsets_not_loaded(original: Function) -> Function:
    def read_key(data: bytes) -> Any:
        key = original(data)
        return key if isinstance(key, GroupKey) else None

    return read_key


def _groups_not_loaded(original: Function) -> Function:
    def read_key(data: bytes) -> Any:
        key = original(data)
        return None if isinstance(key, GroupKey) else key

    return read_key


def _generation_not_advanced(original: Function) -> Function:
    def begin(self: Any, now_ms: int) -> None:
        original(self, now_ms)
        self.generation = max(self.generation - 1, 1)

    return begin


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "generation_not_checked",
        "a member of an earlier generation may still commit",
        "node",
        "reference_broker.groups.state.group:Group.check_commit",
        ("self", "member_id", "group_instance_id", "generation"),
        _generation_not_checked,
    ),
    Mutant(
        "commit_before_replicated",
        "a commit is acknowledged as soon as the coordinator's own log holds it",
        "node",
        "reference_broker.groups.storage.log:OffsetsLog._acknowledge",
        ("self", "end_offset", "written"),
        _commit_before_replicated,
        ("M-8",),
    ),
    Mutant(
        "offsets_not_loaded",
        "a coordinator that takes over reads the groups, not their offsets",
        "node",
        "reference_broker.groups.storage.loading:read_key",
        ("data",),
        _offsets_not_loaded,
        ("M-8",),
    ),
    Mutant(
        "groups_not_loaded",
        "a coordinator that takes over reads the offsets, not the groups",
        "node",
        "reference_broker.groups.storage.loading:read_key",
        ("data",),
        _groups_not_loaded,
    ),
    Mutant(
        "generation_not_advanced",
        "after a rebalance other members have the number of the generation before",
        "node",
        "reference_broker.groups.state.group:Group.begin_generation",
        ("self", "now_ms"),
        _generation_not_advanced,
    ),
)
