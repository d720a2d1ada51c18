from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Event, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node

OFFSET_COMMIT = 8


class CommitsFenced(Check):
    """commits-fenced: a coordinator acknowledges a commit only to a member of the group's current generation.

    A commit does not change the generation. So the generation after the request was handled is the one in which it was
    judged. The check reads the group's state from the broker, and compares by itself.
    """

    guarantee = "commits-fenced"
    needs_one_node = True
    acts_on = (OFFSET_COMMIT,)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._stale: dict[tuple[int, int, int], str] = {}
        """by (node, connection, correlation ID): commits from another generation than the group's, with the story to
        report if they are acknowledged"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        if type(event) is Request and event.api_key == OFFSET_COMMIT:
            self._asked(node, event)
        if not self._stale:
            return
        for effect in effects:
            if type(effect) is Reply and effect.api_key == OFFSET_COMMIT:
                story = self._stale.pop((node.broker.node_id, effect.connection, effect.correlation_id), None)
                if story is not None and _acknowledges(effect.body):
                    self.violated(at_us, story)

    def _asked(self, node: "Node", event: Request) -> None:
        body: Any = event.body
        generation = int(body.generation_id_or_member_epoch)
        if generation < 0:
            return  # Kafka: a client that is no member commits without a generation.
        known = (each.groups.get(str(body.group_id)) for each in node.broker.groups.active())
        group = next((each for each in known if each is not None), None)
        if group is None or group.generation != generation or str(body.member_id) not in group.members:
            self._stale[node.broker.node_id, event.connection, event.correlation_id] = (
                f"node {node.broker.node_id} acknowledged a commit of {event.client_id} in generation {generation} "
                f"of group {body.group_id}, "
                + ("which it does not know" if group is None else f"whose generation is {group.generation}")
            )


def _acknowledges(body: Any) -> bool:
    return any(int(each.error_code) == 0 for topic in body.topics for each in topic.partitions)
