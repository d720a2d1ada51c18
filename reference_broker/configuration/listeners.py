"""The listeners of a node: where it accepts connections, which requests it takes there, and what it announces.

The settings are Kafka's: ``listeners``, ``listener.security.protocol.map``, ``controller.listener.names``,
``inter.broker.listener.name`` and ``advertised.listeners`` (KIP-103, KIP-291, KIP-595). PLAINTEXT is the only protocol.
Voters and peers are named as ID@HOST:PORT,... (``voters_of``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reference_broker.configuration.setting import ConfigError

DEFAULT_NAME = "PLAINTEXT"
_OTHER_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
ANY_ADDRESS = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0")
"""Addresses that stand for all interfaces. One can listen there, but nobody can connect to them."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener that a node opens."""

    name: str
    host: str
    """Empty for all interfaces."""
    port: int
    """0 lets the system choose."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which others reach this node."""

    host: str
    port: int
    name: str = DEFAULT_NAME
    """The name of the listener."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The requests that one listener accepts. A listener of brokers accepts clients' requests, too, as in Kafka."""

    name: str
    clients: bool = True
    brokers: bool = True
    """Requests of brokers to brokers: fetches of followers, UpdateMetadata."""
    controllers: bool = True
    """Requests of nodes to controllers."""


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """The listeners of a node, and what each is for."""

    listeners: tuple[Listener, ...]
    """Empty if the node has a single listener, which its command line names and which takes all requests."""
    controllers: tuple[str, ...]
    """The names of the listeners that only nodes use to reach controllers."""
    inter_broker: str
    advertised: tuple[Listener, ...]

    @property
    def scopes(self) -> dict[str, Scope]:
        """By name. It is empty for a single listener, where nothing is refused."""
        return {listener.name: self._scope(listener.name) for listener in self.listeners}

    @property
    def of_nodes(self) -> frozenset[str]:
        """The listeners to which only nodes have a reason to connect. The one between brokers is none of them if it is
        the only one that clients can use."""
        mine = (*self.controllers, self.inter_broker)
        for_clients = [listener.name for listener in self.listeners if listener.name not in mine]
        return frozenset(mine if for_clients else self.controllers)

    def _scope(self, name: str) -> Scope:
        if name in self.controllers:
            return Scope(name, clients=False, brokers=False, controllers=True)
        is_inter_broker = name == self.inter_broker
        return Scope(name, brokers=is_inter_broker, controllers=is_inter_broker and not self.controllers)


def listener_plan(
    listeners: str, protocols: str, controller_names: str, inter_broker: str, advertised: str
) -> ListenerPlan:
    """Read the five settings. Raise ConfigError if they do not fit together."""
    found = _listeners("listeners", listeners)
    names = [each.name for each in found]
    controllers = tuple(_words(controller_names))
    _check_protocols(protocols, [*names, *controllers])
    announced = _listeners("advertised.listeners", advertised)
    if not found:
        return _single(controllers, inter_broker, advertised, announced)
    ports = [each.port for each in found if each.port]
    if len(dict.fromkeys(names)) != len(names) or len(dict.fromkeys(ports)) != len(ports):
        raise ConfigError(f"listeners is {listeners!r}: each listener must have another name and another port.")
    missing = [name for name in controllers if name not in names]
    if missing:
        raise ConfigError(f"controller.listener.names has {missing[0]}, which is none of the listeners: add it there.")
    of_brokers = [name for name in names if name not in controllers]
    if not of_brokers:
        raise ConfigError("listeners has only listeners of controllers: this node is a broker, too, so give one more.")
    chosen = inter_broker or (DEFAULT_NAME if DEFAULT_NAME in of_brokers else of_brokers[0])
    _check_advertised(announced, of_brokers, chosen)
    return ListenerPlan(found, controllers, chosen, announced)


def _single(
    controllers: Sequence[str], inter_broker: str, advertised: str, announced: tuple[Listener, ...]
) -> ListenerPlan:
    names = {"controller.listener.names": ",".join(controllers), "inter.broker.listener.name": inter_broker}
    for name, given in names.items():
        if given:
            raise ConfigError(f"{name} is {given!r}: it needs listeners that have this name.")
    if len(announced) > 1 or (
        announced and (announced[0].name != DEFAULT_NAME or not announced[0].host or not announced[0].port)
    ):
        raise ConfigError(f"advertised.listeners is {advertised!r}: give one PLAINTEXT://HOST:PORT.")
    _check_advertised(announced, [DEFAULT_NAME], DEFAULT_NAME)
    return ListenerPlan((), (), DEFAULT_NAME, announced)


def _check_advertised(announced: Sequence[Listener], of_brokers: Sequence[str], inter_broker: str) -> None:
    names = [each.name for each in announced] or of_brokers
    unknown = [name for name in names if name not in of_brokers]
    if unknown:
        raise ConfigError(
            f"advertised.listeners has {unknown[0]}, which is no listener of brokers: the valid names are "
            f"{','.join(of_brokers)}."
        )
    if inter_broker not in names:
        raise ConfigError(
            f"inter.broker.listener.name is {inter_broker!r}: it must be an advertised listener of brokers, which are "
            f"{','.join(names)}."
        )
    for each in announced:
        if each.host in ANY_ADDRESS:
            raise ConfigError(
                f"advertised.listeners cannot use the nonroutable meta-address {each.host}: give an address that "
                "others can connect to."
            )
        if not each.host or not each.port:
            raise ConfigError(f"advertised.listeners has {each.name} without a host or port: give both.")


def _listeners(setting: str, text: str) -> tuple[Listener, ...]:
    return tuple(_listener(setting, text, word) for word in _words(text))


def _listener(setting: str, text: str, word: str) -> Listener:
    name, separator, address = word.rpartition("://")
    host, colon, port = address.rpartition(":")
    good = colon and port.isascii() and port.isdigit() and int(port) < 65536 and name.replace("_", "").isalnum()
    if separator and good:
        return Listener(name.upper(), host.strip("[]"), int(port))
    if setting == "advertised.listeners":  # A bare HOST:PORT is understood, too, for the single listener.
        if not separator and colon and host and port.isascii() and port.isdigit() and int(port) < 65536:
            return Listener(DEFAULT_NAME, host.strip("[]"), int(port))
        raise ConfigError(f"{setting} is {text!r}: give one PLAINTEXT://HOST:PORT.")
    raise ConfigError(f"{setting} is {text!r}: give NAME://HOST:PORT,...")


def _check_protocols(text: str, names: Sequence[str]) -> None:
    """Without a map every name stands for PLAINTEXT, except the names of the protocols that are not served."""
    known: dict[str, str] = {}
    for word in _words(text):
        name, colon, protocol = word.partition(":")
        if not colon or not name:
            raise ConfigError(f"listener.security.protocol.map is {text!r}: give NAME:PLAINTEXT,...")
        known[name] = protocol
    for name in names:
        protocol = known.get(name, "" if known else name if name in _OTHER_PROTOCOLS else DEFAULT_NAME)
        if not protocol:
            raise ConfigError(f"listener.security.protocol.map has no protocol for {name}: add {name}:PLAINTEXT.")
        if protocol != DEFAULT_NAME:
            raise ConfigError(f"The listener {name} has the protocol {protocol}: only PLAINTEXT is served.")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True, slots=True)
class Voter:
    """A node and the address at which this node reaches it. It is the node's real address, or that of a proxy on the
    link between the two."""

    node_id: int
    host: str
    port: int


def voters_of(text: str) -> tuple[Voter, ...]:
    """Return the nodes in ascending order. Malformed entries are omitted. ``BrokerConfig`` counts the rest to refuse
    them."""
    found = [_voter(each) for each in text.split(",")]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.node_id))


def _voter(text: str) -> Voter | None:
    number, separator, address = text.strip().partition("@")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and host and all(each.isascii() and each.isdigit() for each in (number, port))):
        return None
    return Voter(int(number), host.strip("[]"), int(port)) if 0 < int(port) < 65536 else None
