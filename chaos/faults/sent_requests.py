"""What the faults share that send a node requests in the name of other nodes. No proxy stands between."""

import threading
import time
from collections.abc import Callable, Sequence

from bench.fleet.behaviours.protocol import Address
from chaos.faults.timed import End, Ended, Place
from chaos.node_requests import NodeRequest
from reference_broker.blocking.connections import Connection, LostError, TransportError

ANSWER_US = 1_500_000
AGAIN_S = 0.1
PATIENCE_S = 8.0
"""For this long we wait for a node that starts, or that has got no request yet that could be replayed."""
LAST_WAIT_S = 2.0
"""How long we still wait for the answers once the load is over."""


def sent(place: Place, address: Address, requests: Callable[[], Sequence[NodeRequest]]) -> End:
    """Sends the requests, each on a connection of its own, in a thread. The evidence is what became of them."""
    outcomes: list[str] = []

    def send() -> None:
        until_s = time.monotonic() + PATIENCE_S
        found = requests() if _is_up(address, until_s) else ()
        while not found and time.monotonic() < until_s:
            time.sleep(AGAIN_S)
            found = requests()
        outcomes.extend(f"{asked.told}: {_outcome(address, asked)}" for asked in found)

    sending = threading.Thread(target=send, name="requests", daemon=True)
    sending.start()

    def end() -> Ended | None:
        if sending.is_alive() and not place.is_over:
            return None
        sending.join(LAST_WAIT_S)
        arrived = any(not each.endswith(_NOT_SENT) for each in outcomes)
        return Ended("; ".join(outcomes) if arrived else "")

    return end


_NOT_SENT = "not sent"


def _is_up(address: Address, until_s: float) -> bool:
    while time.monotonic() < until_s:
        try:
            Connection.open(address.host, address.port, ANSWER_US).close()
        except TransportError:
            time.sleep(AGAIN_S)
        else:
            return True
    return False


def _outcome(address: Address, asked: NodeRequest) -> str:
    try:
        connection = Connection.open(address.host, address.port, ANSWER_US)
    except TransportError:
        return _NOT_SENT
    try:
        connection.call(asked.api_key, asked.api_version, asked.client_id, asked.body, ANSWER_US)
    except LostError:
        return "closed"
    except TransportError:
        return "no answer"
    finally:
        connection.close()
    return "answered"
