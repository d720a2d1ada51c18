"""How a broker asks the active controller: over the network, or by a short cut where this node is it."""

from collections.abc import Callable
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.controller import NO_CONTROLLER, Controller
from reference_broker.ports.channels import Channel
from reference_broker.ports.node_ports import Surroundings
from reference_broker.wire.apis import ApiKey

ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""(API key, request, answer): what the node's own APIs say."""


class ControllerChannel:
    """``serve_locally`` is set by whoever has the APIs. Requests are of the greatest version."""

    __slots__ = ("_config", "_surroundings", "controller", "serve_locally")

    def __init__(self, surroundings: Surroundings, config: BrokerConfig, controller: Controller) -> None:
        self.controller = controller
        self.serve_locally: ServeLocally = _nobody
        self._surroundings = surroundings
        self._config = config

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
        """Asks the leader that is known now. One of the two callbacks follows, in an event of its own. ``failed``: no
        leader is known, or it could not be reached in ``controller.quorum.request.timeout.ms``: it may have acted."""
        leader_id, ports = self.controller.leader_id, self._surroundings.ports
        if leader_id == NO_CONTROLLER:
            ports.set_timer(ports.now().mono_us, failed)
        elif leader_id == self._surroundings.node_id:
            ports.set_timer(ports.now().mono_us, lambda: self.serve_locally(api_key, body, replied))
        else:
            timeout_ms = self._config.controller_quorum_request_timeout_ms
            channel = Channel.CONTROLLER if api_key in _OF_ITSELF else Channel.FORWARD
            ports.send(leader_id, channel, api_key, api_version, body, timeout_ms, replied, failed)


_OF_ITSELF = (ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT)


def _nobody(_api_key: int, _body: object, _answer: Callable[[object], None]) -> None:
    raise AssertionError("a node asks itself before its APIs are there")
