from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from chaos.checks.check import Check
from chaos.checks.quorum_view import Member
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Note, Reply
from reference_broker.core.events import Closed, Event, Request
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@dataclass(slots=True)
class Beating:
    """An unfenced broker's heartbeats without a silence: when they began, and when the last one was answered."""

    since_us: int
    last_us: int


class SessionKept(Check):
    """no-false-fencing, as the active controller's own process shows it (KIP-631): a broker whose heartbeats it answers
    in time is not fenced, and nobody else gets its ID.

    A session lasts from each answered heartbeat for ``broker.session.timeout.ms`` on the controller's own clock. So it
    does not matter how busy the machine is: a heartbeat that comes late is a silence, and a silence of a whole session
    excuses. So does a heartbeat that asks to be fenced or to shut down. KIP-631: a broker that the metadata has as
    fenced has no session, whichever controller fenced it, so another start of it may register at once. Physical: a
    fencing shows when it is committed, a while after it was decided. So what came up to a session before it excuses as
    well. A leader that could not commit for so long is no longer the leader.
    """

    guarantee = "no-false-fencing"
    needs_one_node = True
    acts_on = (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION, Closed, type(None))
    notes: ClassVar[tuple[str, ...]] = ("broker_fenced",)

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._asked: dict[tuple[int, int], tuple[Request, bool]] = {}
        """the request that each connection of a node waits for, and whether another start of the broker was known"""
        self._alive: dict[tuple[int, int], Beating] = {}
        """by controller and broker"""
        self._session_us: dict[int, int] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        controller = node.broker.node_id
        if event is None:
            self._forget(controller)
        elif type(event) is Request and event.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
            self._session_us[controller] = node.broker.config.broker_session_timeout_ms * 1000
            body: Any = event.body
            known = node.broker.controller.image.brokers.get(int(body.broker_id))
            is_another = event.api_key == ApiKey.BROKER_REGISTRATION and (
                known is not None and not known.fenced and known.incarnation_id != body.incarnation_id.bytes
            )
            self._asked[controller, event.connection] = event, is_another
        elif type(event) is Closed:
            self._asked.pop((controller, event.connection), None)
        for effect in effects if self._asked else ():
            if type(effect) is Reply and effect.api_key in (ApiKey.BROKER_HEARTBEAT, ApiKey.BROKER_REGISTRATION):
                asked, is_another = self._asked.pop((controller, effect.connection), (None, False))
                answer: Any = effect.body
                if asked is None or answer.error_code:
                    continue
                if asked.api_key == ApiKey.BROKER_HEARTBEAT:
                    self._beat(at_us, controller, asked.body, answer)
                elif is_another:
                    self._registered(at_us, controller, asked.body)

    def _forget(self, controller: int) -> None:
        """KIP-631: sessions are in the memory of the process. After its start a controller has heard from nobody."""
        for place in [each for each in self._asked if each[0] == controller]:
            del self._asked[place]
        for place in [each for each in self._alive if each[0] == controller]:
            del self._alive[place]

    def _beat(self, at_us: int, controller: int, asked: Any, answer: Any) -> None:
        place = controller, int(asked.broker_id)
        if answer.is_fenced or asked.want_fence or asked.want_shut_down:
            self._alive.pop(place, None)
            return
        before = self._alive.get(place)
        is_silence = before is None or at_us - before.last_us >= self._session_us[controller]
        if before is None or is_silence:
            self._alive[place] = Beating(at_us, at_us)
        else:
            before.last_us = at_us

    def _registered(self, at_us: int, controller: int, asked: Any) -> None:
        """A broker that comes back waits until the session of its earlier life is over."""
        broker = int(asked.broker_id)
        if self._has_session(at_us, controller, broker):
            self.violated(at_us, f"controller {controller} gave away the ID of broker {broker}, which is alive")
        self._alive.pop((controller, broker), None)

    def note(self, at_us: int, member: Member, note: Note) -> None:
        broker = int(dict(note.fields)["broker"])
        if self._has_session(at_us, member.node_id, broker):
            self.violated(
                at_us, f"controller {member.node_id} fenced broker {broker}, whose heartbeats it had answered in time"
            )
        self._alive.pop((member.node_id, broker), None)

    def _has_session(self, at_us: int, controller: int, broker: int) -> bool:
        beating, session_us = self._alive.get((controller, broker)), self._session_us.get(controller, 0)
        return beating is not None and at_us - beating.since_us > session_us > at_us - beating.last_us
