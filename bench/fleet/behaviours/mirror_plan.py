from dataclasses import dataclass

from bench.fleet.behaviours.group_member import MemberPlan
from bench.fleet.behaviours.protocol import ClientSettings


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """Copies what ``member`` reads to the same partitions in another cluster. An offset is committed once the target
    has acknowledged the records before it. ``target`` says how that cluster is reached."""

    member: MemberPlan
    target: ClientSettings
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000
