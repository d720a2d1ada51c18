"""How a broker asks the active controller: over the network, or directly if this node is the controller."""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.controller import NO_CONTROLLER, Controller
from reference_broker.ports.channels import Channel
from reference_broker.ports.node_ports import Surroundings
from reference_broker.wire.apis import ApiKey


@dataclass(slots=True, eq=False)
class ControllerChannel:
    """The way to whichever node is the active controller now."""

    _surroundings: Surroundings
    _config: BrokerConfig
    controller: Controller

    @property
    def has_leader(self) -> bool:
        return self.controller.leader_id != NO_CONTROLLER

    def ask(
        self,
        api_key: int,
        api_version: int,
        body: object,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        """Asks the leader that is known now. One of the two callbacks follows, in an event of its own.

        ``failed`` means that no leader is known, or that it did not answer within
        ``controller.quorum.request.timeout.ms``. It may have acted nevertheless.
        """
        leader_id = self.controller.leader_id
        if leader_id == NO_CONTROLLER:
            self._surroundings.after(0, failed)
        elif leader_id == self._surroundings.node_id:
            self._surroundings.after(0, lambda: self.controller.serve_locally(api_key, body, replied))
        else:
            timeout_ms = self._config.controller_quorum_request_timeout_ms
            channel = Channel.CONTROLLER if api_key in _OF_ITSELF else Channel.FORWARD
            self._surroundings.ports.send(leader_id, channel, api_key, api_version, body, timeout_ms, replied, failed)


_OF_ITSELF = (ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.ASSIGN_REPLICAS_TO_DIRS)
