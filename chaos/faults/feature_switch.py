"""The administrator of the fault ``feature_finalized``: a client that sets the level of a feature."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from bench.fleet.behaviours.bodies import upgrade_feature_request
from bench.fleet.behaviours.protocol import (
    Address,
    Connect,
    Connected,
    Disconnect,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    Wake,
    Woken,
)
from reference_broker.wire.apis import ApiKey

UPDATE_FEATURES_VERSION: Final = 2
TIMEOUT_US: Final = 3_000_000
RETRY_US: Final = 300_000


class FeatureSwitch:
    """Raises the level of one feature or switches it off, as an administrator's tool does. It sends its request to node
    after node until one grants it.

    Implements bench.fleet.behaviours.protocol.Behaviour. ``granted`` is called once, with the node that granted.
    """

    def __init__(
        self, process: str, nodes: Sequence[Address], feature: str, level: int, granted: Callable[[Now, int], None]
    ) -> None:
        self._process = process
        self._nodes = nodes
        self._feature = feature
        self._level = level
        self._granted = granted
        self._at = -1

    @property
    def process(self) -> str:
        return self._process

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        match event:
            case Started() | Woken():
                self._at = (self._at + 1) % len(self._nodes)
                return [Connect(self._nodes[self._at], TIMEOUT_US)]
            case Connected():
                body = upgrade_feature_request(self._feature, self._level, TIMEOUT_US // 1000)
                return [Request(int(ApiKey.UPDATE_FEATURES), UPDATE_FEATURES_VERSION, self._process, body, TIMEOUT_US)]
            case ResponseReceived() if _error_of(event.body) == 0:
                self._granted(now, self._at)
                return [Finished()]
            case Stopping() | Leaving():
                return [Finished()]
            case _:
                return [Disconnect(), Wake(now.mono_us + RETRY_US)]

    def close(self, now: Now) -> list[HistoryRow]:  # noqa: ARG002
        return []


def _error_of(body: object) -> int:
    from kio.schema.update_features.v2.response import UpdateFeaturesResponse

    return int(cast("UpdateFeaturesResponse", body).error_code.value)
