"""Node addresses as a setting names them: ID@HOST:PORT,..."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voter:
    """A node and the address at which this node reaches it. It is the node's real address, or that of a proxy on the
    link between the two."""

    node_id: int
    host: str
    port: int


def voters_of(text: str) -> tuple[Voter, ...]:
    """Returns the nodes in ascending order. Malformed entries are left out. ``BrokerConfig`` counts the rest to refuse
    them."""
    found = [_voter(each) for each in text.split(",")]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.node_id))


def _voter(text: str) -> Voter | None:
    number, separator, address = text.strip().partition("@")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and host and all(each.isascii() and each.isdigit() for each in (number, port))):
        return None
    return Voter(int(number), host.strip("[]"), int(port)) if 0 < int(port) < 65536 else None
