"""The APIs that a node serves, which load at their first request."""

import re
import subprocess
import sys

import pytest

from reference_broker.apis.registry import MODULES, Dispatcher, load, serves
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.fetch import FetchRequest

NODE_WITHOUT_REQUESTS = """
import sys
from reference_broker.core.node import Node
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.configuration.broker_config import BrokerConfig

node = Node(0, BrokerConfig.parse({}), MemoryDisk(), 1)
node.start(Now(0, 0))
kio = "kio.schema."
messages = {name.removeprefix(kio).split(".")[0] for name in sys.modules if name.startswith(kio)}
print(" ".join(sorted(messages)))
"""


@pytest.mark.parametrize("api_key", MODULES, ids=lambda key: ApiKey(key).name)
def test_each_module_lists_api_and_versions_it_serves(api_key: int) -> None:
    load(api_key)
    module = sys.modules[f"reference_broker.apis.{MODULES[api_key]}"]
    assert f".k{api_key:02}_{ApiKey(api_key).name.lower()}" == f".{MODULES[api_key].split('.')[1]}"
    docstring = module.__doc__ or ""
    assert re.fullmatch(rf"{api_name(api_key)}: [^\n]+\.\n\n(\* .*)KIPs: [0-9, ]+\.\n", docstring, re.DOTALL)
    assert docstring.count("\n") <= 30, "differences from Kafka are at the end of the file, if they are many"


def test_only_a_version_that_is_announced_or_a_draft_is_served() -> None:
    assert serves(ApiKey.FETCH, 18)
    assert serves(ApiKey.FETCH, 1000)
    assert not serves(ApiKey.FETCH, 19)
    assert not serves(ApiKey.VOTE, 1000)
    assert not serves(ApiKey.SHARE_FETCH, 0)
    assert not serves(-1, 0)


def test_body_of_wrong_class_does_not_reach_handler() -> None:
    dispatcher = Dispatcher(FetchWorld().broker)
    with pytest.raises(AssertionError, match="API 0 got a FetchRequest"):
        dispatcher.dispatch(ApiKey.PRODUCE, FakeCall(1, "c", 9), FetchRequest())


@pytest.mark.live
def test_node_without_requests_loads_few_schemas() -> None:
    """Schemas are most of the cost of a start. Requests that the node itself sends to the controller need their own."""
    finished = subprocess.run([sys.executable, "-c", NODE_WITHOUT_REQUESTS], capture_output=True, text=True, check=True)
    own = {"assign_replicas_to_dirs", "broker_registration", "broker_heartbeat"}
    shared = {"errors", "types", "request_header", "response_header"}
    assert set(finished.stdout.split()) <= own | shared
