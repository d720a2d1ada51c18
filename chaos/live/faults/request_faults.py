"""Faults for which a client of the suite sends requests to a node directly, without a proxy."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.fleet.behaviours.protocol import Address, Now
from bench.fleet.driver import BlockingDriver
from bench.fleet.spec import address_of
from chaos.faults.feature_switch import FeatureSwitch
from chaos.faults.node_requests import Forger, NodeRequest
from chaos.live.faults.fault_context import Begin, End, Ended, LiveFaultContext, node_of
from chaos.live.node_side.peer_requests import recorded
from chaos.live.quorum import CLUSTER_ID_KEY, VOTERS_KEY
from chaos.live.targets import FaultTarget
from chaos.seeds import random_for
from reference_broker.blocking.transport import Connection, LostError, TransportError

REPLY_LIMIT_US = 1_500_000
RETRY_S = 0.1
START_LIMIT_S = 8.0
"""Limits the wait for a node that starts, or that has got no request yet that could be replayed."""
LAST_WAIT_S = 2.0
"""Limits the wait for replies once the load is over."""
FEATURE_LAST_WAIT_S = 5.0
"""The same for the client of ``feature_finalized``."""
_NOT_SENT = "not sent"


def requests_replayed(context: LiveFaultContext, target: FaultTarget) -> End:
    """Send the node one old request of each API that other nodes sent to it earlier in this run."""
    node, spec = node_of(target), context.spec(node_of(target))
    random = random_for(spec.seed, f"{target.fault.name}-{context.now_us()}")

    def requests() -> Sequence[NodeRequest]:
        return recorded(Path(spec.hit_counts), node).replays(node, random)

    return send_all(context, address_of(spec.listen), requests)


def requests_forged(context: LiveFaultContext, target: FaultTarget) -> End:
    """Send the node one forged request of each API in the name of other nodes."""
    node, spec = node_of(target), context.spec(node_of(target))
    random = random_for(spec.seed, f"{target.fault.name}-{context.now_us()}")

    voters = tuple(range(len(spec.config[VOTERS_KEY].split(","))))

    def requests() -> Sequence[NodeRequest]:
        kept = recorded(Path(spec.hit_counts), node)
        return Forger(kept, spec.config[CLUSTER_ID_KEY], voters, node, random).requests()

    return send_all(context, address_of(spec.listen), requests)


def feature_finalized(context: LiveFaultContext, target: FaultTarget) -> End:
    """Send an UpdateFeatures request to node after node until one grants it."""
    fault = target.fault
    granted: list[int] = []

    def note_granted(now: Now, node: int) -> None:  # noqa: ARG001
        granted.append(node)

    nodes = [address_of(address) for address in context.addresses()]
    driver = BlockingDriver(
        FeatureSwitch("feature-switch", nodes, fault.feature, fault.level, note_granted), lambda _: None
    )
    client = threading.Thread(target=driver.run, name="feature_finalized", daemon=True)
    client.start()

    def end() -> Ended | None:
        if client.is_alive() and not context.is_over:
            return None
        client.join(FEATURE_LAST_WAIT_S)
        driver.stop()
        return Ended(f"node-{granted[0]} granted {fault.feature} {fault.level}" if granted else "")

    return end


def send_all(context: LiveFaultContext, address: Address, requests: Callable[[], Sequence[NodeRequest]]) -> End:
    """Send the requests, each on a connection of its own, in a thread. The evidence is the outcome of each."""
    outcomes: list[str] = []

    def send() -> None:
        until_s = time.monotonic() + START_LIMIT_S
        found = requests() if _is_up(address, until_s) else ()
        while not found and time.monotonic() < until_s:
            time.sleep(RETRY_S)
            found = requests()
        outcomes.extend(f"{request.label}: {_outcome(address, request)}" for request in found)

    sending = threading.Thread(target=send, name="requests", daemon=True)
    sending.start()

    def end() -> Ended | None:
        if sending.is_alive() and not context.is_over:
            return None
        sending.join(LAST_WAIT_S)
        arrived = any(not outcome.endswith(_NOT_SENT) for outcome in outcomes)
        return Ended("; ".join(outcomes) if arrived else "")

    return end


def _is_up(address: Address, until_s: float) -> bool:
    while time.monotonic() < until_s:
        try:
            Connection.open(address.host, address.port, REPLY_LIMIT_US).close()
        except TransportError:
            time.sleep(RETRY_S)
        else:
            return True
    return False


def _outcome(address: Address, request: NodeRequest) -> str:
    try:
        connection = Connection.open(address.host, address.port, REPLY_LIMIT_US, request.client_id)
    except TransportError:
        return _NOT_SENT
    try:
        with connection:
            connection.call(request.api_key, request.api_version, request.body, REPLY_LIMIT_US)
    except LostError:
        return "closed"
    except TransportError:
        return "no response"
    return "got a response"


BEGIN: Final[dict[str, Begin]] = {
    "requests_replayed": requests_replayed,
    "requests_forged": requests_forged,
    "feature_finalized": feature_finalized,
}
