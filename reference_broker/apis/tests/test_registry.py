"""Which APIs a node serves, and that they load when they are first asked for."""

import subprocess
import sys

import pytest

from reference_broker.apis.registry import SERVED, Apis, apis
from reference_broker.wire.apis import ApiKey

NODE_WITHOUT_REQUESTS = """
import sys
from reference_broker.core.node import Node
from reference_broker.ports.memory_disk import MemoryDisk
from reference_broker.ports.now import Now
from reference_broker.configuration.broker_config import BrokerConfig

node = Node(0, BrokerConfig.parse({}), MemoryDisk(), 1)
node.start(Now(0, 0))
kio = "kio.schema."
messages = {name.removeprefix(kio).split(".")[0] for name in sys.modules if name.startswith(kio)}
print(" ".join(sorted(messages)))
"""


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: ApiKey(key).name)
def test_the_versions_that_are_announced_are_those_of_the_card(api_key: int) -> None:
    card = apis()[api_key].card
    assert (card.api_key, card.min_version, card.max_version) == (api_key, *SERVED[api_key])


def test_a_node_finds_what_is_served_and_nothing_else() -> None:
    found = Apis()
    fetch = found.find(ApiKey.FETCH)
    assert fetch is not None
    assert found.find(ApiKey.FETCH) is fetch
    assert found.find(ApiKey.ADD_OFFSETS_TO_TXN) is None
    assert found.find(-1) is None


@pytest.mark.live
def test_a_node_that_nobody_has_asked_anything_has_loaded_next_to_no_message() -> None:
    """Schemas are most of what a start costs. The node's own registration and heartbeats need theirs."""
    told = subprocess.run([sys.executable, "-c", NODE_WITHOUT_REQUESTS], capture_output=True, text=True, check=True)
    own = {"broker_registration", "broker_heartbeat"}
    shared = {"errors", "types", "request_header", "response_header"}
    assert set(told.stdout.split()) <= own | shared
