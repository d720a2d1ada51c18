"""A feature is finalized through one node after the other, by a client in a thread of its own, without proxies."""

import socket
import threading
import time
from typing import Any

import pytest
from kio.schema.update_features.v2.response import UpdateFeaturesResponse

from bench.fleet.behaviours.bodies import milliseconds
from chaos.live.faults import request_faults
from chaos.live.faults.fault_context import Ended
from chaos.live.faults.request_faults import feature_finalized
from chaos.live.targets import FaultTarget
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, encode_response
from scenarios.model import Fault

FAULT = Fault("f", "feature_finalized", feature="crucible.metadata.epoch", level=1)


class FakeNode:
    """Responds to one UpdateFeatures after the other, as ``errors`` says, then with none."""

    def __init__(self, *errors: ErrorCode) -> None:
        self.updates: list[tuple[str, int]] = []
        self._errors = list(errors)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                frame = memoryview(connection.recv(size, socket.MSG_WAITALL))
                header, offset = read_request_header(frame)
                body: Any = decode_request(header.api_key, header.api_version, frame, offset)
                self.updates.append((body.feature_updates[0].feature, int(body.feature_updates[0].max_version_level)))
                error = self._errors.pop(0) if self._errors else ErrorCode.none
                response = UpdateFeaturesResponse(throttle_time=milliseconds(0), error_code=error, error_message=None)
                connection.sendall(
                    b"".join(encode_response(header.api_key, header.api_version, header.correlation_id, response))
                )

    def close(self) -> None:
        self._socket.close()


class FakePlace:
    def __init__(self, *nodes: FakeNode) -> None:
        self.is_over = False
        self._nodes = nodes

    def addresses(self) -> tuple[str, ...]:
        return tuple(node.address for node in self._nodes)


def ended(end: Any, within_s: float = 60.0) -> Ended | None:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if (evidence := end()) is not None:
            assert isinstance(evidence, Ended)
            return evidence
        time.sleep(0.02)
    return None


def test_next_node_is_tried_where_one_refuses() -> None:
    first, second = FakeNode(ErrorCode.not_controller), FakeNode()
    place: Any = FakePlace(first, second)
    try:
        evidence = ended(feature_finalized(place, FaultTarget(FAULT, (), "node-0")))
    finally:
        first.close()
        second.close()
    assert evidence == Ended("node-1 granted crucible.metadata.epoch 1")
    assert first.updates == second.updates == [("crucible.metadata.epoch", 1)]


@pytest.mark.thorough
def test_feature_update_never_accepted_before_load_ends_is_not_reported() -> None:
    node = FakeNode(*[ErrorCode.feature_update_failed] * 100)
    place: Any = FakePlace(node)
    try:
        end = feature_finalized(place, FaultTarget(FAULT, (), "node-0"))
        assert ended(end, 0.5) is None
        place.is_over = True
        request_faults.FEATURE_LAST_WAIT_S = 0.2
        assert end() == Ended("")
    finally:
        request_faults.FEATURE_LAST_WAIT_S = 5.0
        node.close()
