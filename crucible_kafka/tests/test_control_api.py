"""The control API in front of a cluster of one node inside of this process."""

import http.client
import inspect
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec
import pytest
from confluent_kafka import Producer

from crucible_kafka import Cluster, Matcher
from crucible_kafka.control import http_server
from crucible_kafka.control.http_server import MAX_BODY_BYTES, ControlServer
from crucible_kafka.control.openapi import document
from crucible_kafka.control.operation import Operation
from crucible_kafka.control.operations import COUNTS, RENAMED, add_rule, operation
from crucible_kafka.control.page import PAGE, page
from crucible_kafka.library.rule_engine import ACTS_AT_REQUEST, ACTS_AT_RESPONSE
from crucible_kafka.library.rule_spec import Act, FunctionAct
from reference_broker.serve.process import StartError

LIMIT_S = 10
TOKEN = "the-token"


class Client:
    """A client of the control API, as one of another language would be."""

    def __init__(self, server: ControlServer, token: str = TOKEN) -> None:
        self.address = urlsplit(server.url).netloc
        self.headers = {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {**self.headers, **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def done(self, method: str, path: str, body: object = None) -> Any:
        status, found = self.call(method, path, body)
        assert status in (200, 201), found
        return found

    def refused(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        status, found = self.call(method, path, body)
        assert set(found) == {"error"}
        return status, found["error"]


@contextmanager
def serving(kafka: Cluster) -> Iterator[ControlServer]:
    server = ControlServer(kafka, "127.0.0.1", 0, TOKEN)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(kafka: Cluster) -> Iterator[ControlServer]:
    with serving(kafka) as served:
        yield served


@pytest.fixture
def client(kafka: Cluster, server: ControlServer) -> Iterator[Client]:
    yield Client(server)
    kafka.clear_rules()


def produce(kafka: Cluster, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "app-1", "retry.backoff.ms": 10})
    for value in values:
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def handlers() -> int:
    """Return the number of connections that are served now."""
    return len([each for each in threading.enumerate() if "process_request_thread" in each.name])


# Operations


def test_rule_loses_a_response_and_its_hits_are_seen(client: Client, kafka: Cluster) -> None:
    client.done("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    wanted = {"api": "Produce", "client_id": "app-*", "topic": "orders", "act": "drop_response", "times": 1}
    rule = client.done("POST", "/v1/rules", wanted)
    path = f"/v1/rules/{rule['id']}"
    assert client.refused("POST", f"{path}/assert-fired")[0] == 422
    assert client.refused("POST", "/v1/rules/check")[0] == 422
    produce(kafka, "orders", "one", "two")
    assert client.done("POST", f"{path}/wait", {"times": 1})["fired"] == 1
    assert [hit["client_id"] for hit in client.done("GET", path)["hits"]] == ["app-1"]
    client.done("POST", "/v1/rules/check")
    stored = client.done("GET", "/v1/topics/orders/records?partition=0")
    assert {each["value"] for each in stored} == {"one", "two"}
    faults = client.done("GET", "/v1/frames?api=Produce&client_id=app-*&direction=response")
    assert any(fault["fault"] for fault in faults)
    assert len(client.done("GET", "/v1/frames?api=Produce&last=1")) == 1
    assert client.done("DELETE", path)["fired"] == 1
    assert client.refused("GET", path)[0] == 404


def test_error_is_injected_for_one_partition(client: Client, kafka: Cluster) -> None:
    client.done("POST", "/v1/topics", {"name": "refused"})
    wanted = {
        "api": ["Produce"],
        "act": "respond_error",
        "error": "NOT_ENOUGH_REPLICAS",
        "error_partition": 0,
        "nth": 1,
    }
    rule = client.done("POST", "/v1/rules", wanted)
    assert "partition=0" in rule["text"]
    produce(kafka, "refused", "again")
    assert client.done("POST", f"/v1/rules/{rule['id']}/assert-fired", {"times": 1})["act"] == "respond_error"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"api": "Produces", "act": "hang"}, "did you mean Produce"),
        ({"api": "Produce", "act": "explode"}, "explode"),
        ({"api": "Produce"}, "`act`"),
        ({"api": "Produce", "act": "hang", "nth": 0}, "nth is 0"),
        ({"api": "Produce", "act": "hang", "seconds": 1}, "hang has no seconds: it takes handled"),
        ({"api": "Produce", "act": "drop_request", "error": "X"}, "it takes no arguments"),
        ({"api": "Produce", "act": "throttle"}, "throttle needs milliseconds"),
        ({"api": "Produce", "act": "respond_error", "error": "NOT_COORDINATE"}, "did you mean NOT_COORDINATOR"),
        ({"api": "Produce", "act": "respond_error", "error_topic": "t"}, "respond_error needs error"),
        ({"api": "Fetch", "act": "hang", "versions": [90, 99]}, "can never match"),
        ({"api": "Produce", "act": "hang", "versions": [1, 2, 3]}, "versions"),
        ({"api": "Produce", "act": "hang", "colour": "red"}, "colour"),
        ({"api": "Produce", "act": "hang", "times": "many"}, "times"),
        ({"api": "Produce", "act": "hang", "node": 5}, "There is no node 5"),
        ({"api": [], "act": "hang"}, "api is empty"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"\xff\xfe", "malformed"),
        (b'{"act":' + b"[" * 100_000, ""),
    ],
)
def test_rule_that_cannot_be_is_refused_in_one_sentence(client: Client, body: object, sentence: str) -> None:
    status, error = client.refused("POST", "/v1/rules", body)
    assert status == 400, error
    assert sentence in error
    assert client.done("GET", "/v1/rules") == []


def test_dead_node_is_a_conflict_until_it_restarts() -> None:
    with Cluster() as kafka, serving(kafka) as server:
        client = Client(server)
        client.done("POST", "/v1/topics", {"name": "kept"})
        produce(kafka, "kept", "one")
        assert client.done("POST", "/v1/nodes/0/kill")["running"] is False
        for method, path in [
            ("POST", "/v1/nodes/0/kill"),
            ("POST", "/v1/nodes/0/pause"),
            ("GET", "/v1/nodes/0/metrics"),
            ("GET", "/v1/groups"),
            ("GET", "/v1/topics/kept/records"),
        ]:
            status, error = client.refused(method, path)
            assert (status, "restart()" in error) == (409, True), path
        assert client.done("POST", "/v1/nodes/0/restart")["serving"] is True
        assert [each["value"] for each in client.done("GET", "/v1/topics/kept/records")] == ["one"]
        assert client.done("POST", "/v1/nodes/0/pause")["serving"] is False
        assert client.done("POST", "/v1/nodes/0/resume")["serving"] is True
        assert client.refused("POST", "/v1/nodes/0/isolate") == (
            409,
            "The only node cannot be isolated: give nodes=3.",
        )


def test_what_does_not_exist_is_said(client: Client) -> None:
    assert client.refused("GET", "/v1/topic")[0] == 404
    assert client.refused("GET", "/v1/nodes/7") == (404, "There is no node 7: the cluster has 0 to 0.")
    assert client.refused("GET", "/v1/rules/7")[0] == 404
    assert client.refused("PUT", "/v1/rules") == (405, "/v1/rules has no PUT: use DELETE or GET or POST.")
    assert client.refused("GET", "/v1/topics/missing/records")[0] == 409
    assert client.refused("GET", "/v1/rules?x=1")[0] == 400
    assert client.refused("GET", "/v1/frames?api=a&api=b")[0] == 400
    assert client.refused("GET", "/v1/coordinator")[0] == 400


def test_values_that_were_delivered_or_lost_are_judged(client: Client) -> None:
    sent = client.done("POST", "/v1/values", {"count": 3, "writer": "w"})
    read = [{"value": each, "topic": "t", "partition": 0, "offset": offset} for offset, each in enumerate(sent)]
    assert client.done("POST", "/v1/assert-delivered", {"sent": sent, "read": read}) == {}
    lost = {"sent": sent, "read": sent[:2], "guarantee": "at-least-once"}
    status, error = client.refused("POST", "/v1/assert-delivered", lost)
    assert status == 422
    assert "value 2 of writer w was acknowledged and never read" in error
    assert client.done("POST", "/v1/assert-delivered", {**lost, "unacknowledged": sent[2:]}) == {}
    raw = {"base64": "/w=="}
    assert client.done("POST", "/v1/assert-delivered", {"sent": [raw], "read": [{"value": raw}]}) == {}


def test_every_list_without_arguments_is_served_as_described(client: Client) -> None:
    plain = [each for each in operation.listed if each.method == "GET" and "{" not in each.path]
    for each in plain:
        path = f"{each.path}?group=g" if each.name == "coordinator" else each.path
        response = client.done("GET", path)
        msgspec.convert(response, each.result)
    assert len(plain) > 10


# Waits


def test_wait_ends_when_the_rule_has_fired(client: Client, kafka: Cluster) -> None:
    client.done("POST", "/v1/topics", {"name": "awaited"})
    rule = client.done("POST", "/v1/rules", {"api": "Produce", "act": "delay_response", "seconds": 0.01, "times": 1})
    later = threading.Timer(0.2, produce, (kafka, "awaited", "x"))
    later.start()
    assert client.done("POST", f"/v1/rules/{rule['id']}/wait", {"timeout_s": LIMIT_S})["fired"] == 1
    later.join()


def test_wait_in_vain_ends_in_time(client: Client) -> None:
    rule = client.done("POST", "/v1/rules", {"api": "Produce", "act": "hang"})
    status, error = client.refused("POST", f"/v1/rules/{rule['id']}/wait", {"timeout_s": 0.05})
    assert status == 504
    assert "has fired 0 of 1 times" in error
    assert client.refused("POST", f"/v1/rules/{rule['id']}/wait", {"timeout_s": 10_000})[0] == 400


def start_waiting(client: Client) -> socket.socket:
    rule = client.done("POST", "/v1/rules", {"api": "Produce", "act": "hang", "optional": True})
    await_handlers(0)  # The connection that made the rule counts until its thread ends.
    host, _, port = client.address.rpartition(":")
    waiting = socket.create_connection((host, int(port)), LIMIT_S)
    head = f"POST /v1/rules/{rule['id']}/wait HTTP/1.1\r\nHost: {client.address}\r\nAuthorization: Bearer {TOKEN}\r\n"
    body = b'{"timeout_s": 500}'
    waiting.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return waiting


def await_handlers(count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while handlers() != count:
        assert time.monotonic() < deadline, f"{handlers()} connections are served, not {count}"
        time.sleep(0.01)


def test_closed_connection_ends_its_wait(client: Client) -> None:
    await_handlers(0)
    with start_waiting(client):
        await_handlers(1)
        time.sleep(0.1)
        assert handlers() == 1
    await_handlers(0)


def test_end_of_the_server_ends_waits() -> None:
    with Cluster() as kafka, serving(kafka) as server, start_waiting(Client(server)):
        await_handlers(1)
        server.close()
        await_handlers(0)


def test_too_many_connections_are_refused(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 1)
    with serving(kafka) as server:
        client = Client(server)
        with start_waiting(client):
            await_handlers(1)
            assert client.refused("GET", "/v1/rules")[0] == 503
        await_handlers(0)
        assert client.call("GET", "/v1/rules")[0] == 200
    kafka.clear_rules()


# Guards


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /v1/rules HTTP/1.1\r\n{token}", 200),
        ("GET /v1/rules HTTP/1.1\r\nHost: localhost:80\r\n{token}", 200),
        ("GET /openapi.json HTTP/1.1\r\n{token}", 200),
        ("GET /openapi.json HTTP/1.1\r\n", 401),
        ("GET /v1/rules HTTP/1.1\r\n", 401),
        ("GET /v1/rules HTTP/1.1\r\nAuthorization: Bearer other\r\n", 401),
        ("GET /v1/rules HTTP/1.1\r\nAuthorization: Basic the-token\r\n", 401),
        ("GET /v1/rules HTTP/1.1\r\nAuthorization: Bearer \xe9\r\n", 401),
        ("GET /no HTTP/1.1\r\n", 401),
        ("GET /v1/rules HTTP/1.1\r\nHost: a-page.example\r\n{token}", 403),
        ("GET /v1/rules HTTP/1.1\r\nHost: [\r\n{token}", 403),
        ("GET /v1/rules HTTP/1.1\r\nOrigin: http://a-page.example\r\n{token}", 403),
        ("OPTIONS /v1/rules HTTP/1.1\r\nOrigin: http://a-page.example\r\n", 403),
        ("POST /v1/rules HTTP/1.1\r\nContent-Length: x\r\n{token}", 400),
        ("POST /v1/rules HTTP/1.1\r\nContent-Length: -1\r\n{token}", 400),
        (f"POST /v1/rules HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n{{token}}", 413),
        ("POST /v1/rules HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{token}", 411),
        ("GET /v1/rules?node=%ff HTTP/1.1\r\n{token}", 400),
        ("BREW /v1/rules HTTP/1.1\r\n{token}", 501),
        ("nothing of HTTP\r\n", 400),
    ],
)
def test_requests_are_guarded(server: ControlServer, head: str, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    request = head.format(token=f"Authorization: Bearer {TOKEN}\r\n") + "\r\n"
    host, _, port = urlsplit(server.url).netloc.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as client:
        client.sendall(request.encode("latin-1"))
        received = b""
        while part := client.recv(65_536):
            received += part
    first, _, rest = received.partition(b"\r\n")
    assert int(first.split()[1]) == status
    body = json.loads(rest.partition(b"\r\n\r\n")[2])
    assert status == 200 or set(body) == {"error"}
    assert capfd.readouterr().err == ""


def test_only_the_loopback_interface_is_served(kafka: Cluster) -> None:
    with pytest.raises(StartError, match="not the loopback interface"):
        ControlServer(kafka, "0.0.0.0", 0, TOKEN)


def test_client_that_sends_half_a_request_is_dropped(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    with serving(kafka) as server:
        host, _, port = urlsplit(server.url).netloc.rpartition(":")
        with socket.create_connection((host, int(port)), LIMIT_S) as client:
            client.sendall(b"POST /v1/rules HTTP/1.1\r\nContent-Length: 50\r\n\r\n{")
            assert client.recv(100) == b""
    assert capfd.readouterr().err == ""


# The document


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_document_is_valid() -> None:
    """By what the OpenAPI specification requires of the objects that it has."""
    described = document()
    assert json.loads(json.dumps(described)) == described
    assert described["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(described["info"])
    for reference in references(described):
        schema = described
        assert reference.startswith("#/")
        for part in reference[2:].split("/"):
            schema = schema[part]
    tags = {tag["name"] for tag in described["tags"]}
    names = []
    for path, methods in described["paths"].items():
        for method, each in methods.items():
            assert method in ("get", "post", "delete")
            names.append(each["operationId"])
            assert set(each["tags"]) <= tags
            in_path = {parameter["name"] for parameter in each["parameters"] if parameter["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            assert all(parameter["required"] for parameter in each["parameters"] if parameter["in"] == "path")
            assert all(parameter["in"] in ("path", "query") and parameter["schema"] for parameter in each["parameters"])
            assert len({(parameter["name"], parameter["in"]) for parameter in each["parameters"]}) == len(
                each["parameters"]
            )
            assert all("description" in response or "$ref" in response for response in each["responses"].values())
            assert each["summary"]
            assert method == "post" or "requestBody" not in each
    assert len(set(names)) == len(names) == len(operation.listed)


@pytest.mark.parametrize("each", operation.listed, ids=lambda each: each.name)
def test_every_operation_of_the_document_is_served(client: Client, each: Operation) -> None:
    """An argument that it does not have is refused by the operation itself, before it does anything."""
    assert each.method.lower() in document()["paths"][each.path]
    path = re.sub(r"\{\w+\}", "0", each.path)
    if each.method == "POST":
        refusal = client.refused("POST", path, {"no_such_argument": 1})
    else:
        refusal = client.refused(each.method, f"{path}?no_such_argument=1")
    assert refusal[0] == 400
    assert "no_such_argument" in refusal[1] or "missing required" in refusal[1]


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m crucible_kafka.control.page"


def test_rules_take_all_that_the_library_takes() -> None:
    fields = set(inspect.signature(add_rule).parameters) - {"call", "act"}
    matched = set(inspect.signature(Cluster.on).parameters) - {"self", "counts"}
    acts = {name for name, _ in inspect.getmembers(Matcher, inspect.isfunction) if not name.startswith("_")} - {
        *get_args(FunctionAct)
    }
    assert acts == {*get_args(Act)} == {*ACTS_AT_REQUEST, *ACTS_AT_RESPONSE} - {*get_args(FunctionAct)}
    renamed = {python: name for name, python in RENAMED.items()}
    of_acts = set()
    for act in acts:
        names = set(inspect.signature(getattr(Matcher, act)).parameters) - {"self", "counts"}
        of_acts |= {renamed.get(name, name) for name in names}
    assert fields == matched | of_acts | set(COUNTS)
    (body,) = [each.body_type for each in operation.listed if each.name == "add_rule"]
    for act in acts:
        assert msgspec.convert({"act": act}, body)
