"""Groups <-> the records that keep them."""

from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.member import Member, MemberProtocol
from reference_broker.groups.offsets.group_records import GroupValue, MemberValue


def recorded(group: Group) -> GroupValue:
    """As it is now: of each member's protocols the selected one, with its assignment. Without members only the
    generation counts, as in Kafka."""
    return GroupValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol if group.members else None,
        leader=group.leader if group.members else None,
        current_state_timestamp_ms=group.state_since_ms,
        members=tuple(_recorded_member(member, group.protocol) for member in group.members.values()),
    )


def _recorded_member(member: Member, protocol: str | None) -> MemberValue:
    return MemberValue(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def restored(group_id: str, value: GroupValue) -> Group:
    """As the record says; a member knows the one protocol that was selected."""
    return Group.loaded(
        group_id,
        value.generation,
        value.protocol_type or None,
        value.protocol,
        value.leader,
        value.current_state_timestamp_ms,
        tuple(_restored_member(member, value.protocol) for member in value.members),
    )


def _restored_member(member: MemberValue, protocol: str | None) -> Member:
    return Member(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=() if protocol is None else (MemberProtocol(protocol, member.subscription),),
        assignment=member.assignment,
    )
