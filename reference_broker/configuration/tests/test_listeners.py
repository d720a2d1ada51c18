"""The listeners of a node, as Kafka's settings name them."""

import pytest

from reference_broker.configuration.broker_config import BrokerConfig, ConfigError
from reference_broker.configuration.listeners import Listener, Scope, listener_plan

THREE = {
    "listeners": "CLIENTS://h:1, REPLICATION://h:2, CONTROLLER://h:3",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "REPLICATION",
}


def test_node_without_listeners_setting_has_single_unrestricted_listener() -> None:
    plan = BrokerConfig.parse({}).listener_plan()
    assert (plan.listeners, plan.scopes, plan.inter_broker) == ((), {}, "PLAINTEXT")


def test_each_listener_has_scope_of_its_purpose() -> None:
    plan = BrokerConfig.parse(THREE).listener_plan()
    assert plan.listeners == (
        Listener("CLIENTS", "h", 1),
        Listener("REPLICATION", "h", 2),
        Listener("CONTROLLER", "h", 3),
    )
    assert plan.scopes == {
        "CLIENTS": Scope("CLIENTS", clients=True, brokers=False, controllers=False),
        "REPLICATION": Scope("REPLICATION", clients=True, brokers=True, controllers=False),
        "CONTROLLER": Scope("CONTROLLER", clients=False, brokers=False, controllers=True),
    }


def test_brokers_meet_at_plaintext_or_else_at_the_first_listener_of_brokers() -> None:
    two = {"listeners": "EXTERNAL://h:1,PLAINTEXT://h:2,C://h:3", "controller.listener.names": "C"}
    assert BrokerConfig.parse(two).listener_plan().inter_broker == "PLAINTEXT"
    other = {"listeners": "C://h:3,EXTERNAL://h:1,LAN://h:2", "controller.listener.names": "C"}
    assert BrokerConfig.parse(other).listener_plan().inter_broker == "EXTERNAL"


def test_without_controller_listener_inter_broker_listener_has_its_scope() -> None:
    config = {"listeners": "PLAINTEXT://h:1,LAN://h:2", "inter.broker.listener.name": "LAN"}
    scopes = BrokerConfig.parse(config).listener_plan().scopes
    assert [(scope.brokers, scope.controllers) for scope in scopes.values()] == [(False, False), (True, True)]


@pytest.mark.parametrize(
    ("names", "controllers", "inter_broker", "of_nodes"),
    [
        (("PLAINTEXT", "REPLICATION", "CONTROLLER"), "CONTROLLER", "REPLICATION", {"REPLICATION", "CONTROLLER"}),
        (("PLAINTEXT", "CONTROLLER"), "CONTROLLER", "PLAINTEXT", {"CONTROLLER"}),
        (("PLAINTEXT", "REPLICATION"), "", "REPLICATION", {"REPLICATION"}),
        (("PLAINTEXT",), "", "PLAINTEXT", set()),
    ],
)
def test_listener_for_clients_is_not_accepted_for_nodes(
    names: tuple[str, ...], controllers: str, inter_broker: str, of_nodes: set[str]
) -> None:
    listeners = ",".join(f"{name}://h:{port}" for port, name in enumerate(names, 1))
    assert listener_plan(listeners, "", controllers, inter_broker, "").of_nodes == of_nodes


def test_single_listener_is_no_listener_of_nodes() -> None:
    assert not listener_plan("", "", "", "", "").of_nodes


def test_host_is_optional_and_ipv6_is_bracketed() -> None:
    plan = BrokerConfig.parse({"listeners": "PLAINTEXT://:9092,LAN://[::1]:9093"}).listener_plan()
    assert [listener.host for listener in plan.listeners] == ["", "::1"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"listeners": "h:1"}, "give NAME://HOST:PORT"),
        ({"listeners": "A://h:99999"}, "give NAME://HOST:PORT"),
        ({"listeners": "A://h:1,A://h:2", "controller.listener.names": ""}, "another name and another port"),
        ({"listeners": "A://h:1,B://h:1", "controller.listener.names": ""}, "another name and another port"),
        ({"controller.listener.names": "NOBODY"}, "has NOBODY, which is none of the listeners"),
        ({"listeners": "CONTROLLER://h:1"}, "this node is a broker, too"),
        ({"inter.broker.listener.name": "CONTROLLER"}, "which are CLIENTS,REPLICATION"),
        ({"inter.broker.listener.name": "LAN"}, "which are CLIENTS,REPLICATION"),
        ({"advertised.listeners": "CONTROLLER://h:3"}, "is no listener of brokers"),
        ({"advertised.listeners": "CLIENTS://h:3"}, "inter.broker.listener.name is 'REPLICATION'"),
        ({"advertised.listeners": "CLIENTS://0.0.0.0:3,REPLICATION://h:2"}, "nonroutable meta-address 0.0.0.0"),
        ({"advertised.listeners": "CLIENTS://:3,REPLICATION://h:2"}, "without a host or port"),
        (
            {"listener.security.protocol.map": "CLIENTS:SSL,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "only PLAINTEXT",
        ),
        ({"listener.security.protocol.map": "CLIENTS:PLAINTEXT"}, "has no protocol for REPLICATION"),
        ({"listener.security.protocol.map": "CLIENTS"}, "give NAME:PLAINTEXT"),
        ({"listeners": "SSL://h:1,REPLICATION://h:2,CONTROLLER://h:3"}, "has the protocol SSL"),
    ],
)
def test_inconsistent_listeners_are_refused_in_one_sentence(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerConfig.parse(THREE | changed)


@pytest.mark.parametrize("name", ["controller.listener.names", "inter.broker.listener.name"])
def test_listener_names_without_listeners_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="needs listeners"):
        BrokerConfig.parse({name: "CONTROLLER"})


def test_single_listener_does_not_advertise_the_address_of_all_interfaces() -> None:
    with pytest.raises(ConfigError, match=r"nonroutable meta-address 0\.0\.0\.0"):
        BrokerConfig.parse({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"})
