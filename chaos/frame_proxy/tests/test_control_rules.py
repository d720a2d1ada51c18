"""Rules by the control API's paths and JSON: which the proxy takes, and what they become."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from chaos.frame_proxy.control import Control
from chaos.frame_proxy.proxy import FrameProxy, ProxyPlan
from reference_broker.wire.apis import ApiKey
from reports.rows import FaultRow

TOKEN = "the-token"
LIMIT_S = 5

Call = Callable[..., tuple[int, Any]]


def played(script: Callable[[Call, FrameProxy], None], token: str = TOKEN) -> None:
    """Play a script with a proxy of no node, in a thread beside its loop."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        proxy = FrameProxy(ProxyPlan())
        served = Control(proxy, loop, "127.0.0.1", 0, TOKEN)

        def call(method: str, path: str, body: object = None) -> tuple[int, Any]:
            data = None if body is None else json.dumps(body).encode()
            request = Request(served.url + path, data, {"Authorization": f"Bearer {token}"}, method=method)
            try:
                with urlopen(request, timeout=LIMIT_S) as response:
                    return response.status, json.loads(response.read())
            except HTTPError as refused:
                with refused:
                    return refused.code, json.loads(refused.read())

        try:
            await loop.run_in_executor(None, script, call, proxy)
        finally:
            await loop.run_in_executor(None, served.close)
            proxy.close()

    asyncio.run(play())


def hit(number: int, at_us: int = 0) -> FaultRow:
    return FaultRow("control-rule-1", "response_dropped", at_us, at_us, "node-2", number, "app-1", ApiKey.PRODUCE)


def test_rule_lives_as_in_the_control_api() -> None:
    def script(call: Call, proxy: FrameProxy) -> None:
        wanted = {"api": "Produce", "client_id": "app-*", "act": "drop_response", "times": 2}
        status, rule = call("POST", "/v1/rules", wanted)
        assert status == 201
        assert rule["id"] == 1
        assert rule["act"] == "drop_response"
        assert rule["fired"] == 0
        assert rule["text"] == "on(\"Produce\", client_id='app-*').drop_response(times=2)"
        (made,) = proxy.rules
        assert made.kind == "response_dropped"
        assert made.on == "response"
        assert made.node == "any"
        assert made.total == 2
        assert made.times == 0
        assert made.match.api == ApiKey.PRODUCE
        assert call("GET", "/v1/rules") == (200, [rule])
        assert call("POST", "/v1/rules/1/assert-fired")[0] == 422
        assert call("POST", "/v1/rules/check")[0] == 422
        assert call("POST", "/v1/rules/1/wait", {"timeout_s": 0.05})[0] == 504
        proxy.hits.append(hit(1))
        assert call("POST", "/v1/rules/1/wait", {"timeout_s": LIMIT_S})[1]["fired"] == 1
        assert call("POST", "/v1/rules/1/assert-fired", {"times": 2})[0] == 422
        assert call("POST", "/v1/rules/check") == (200, {})
        (shown,) = call("DELETE", "/v1/rules/1")[1]["hits"]
        assert shown["node"] == 2
        assert shown["client_id"] == "app-1"
        assert shown["api"] == "Produce"
        assert proxy.rules == ()
        assert call("GET", "/v1/rules/1")[0] == 404
        assert call("POST", "/v1/rules", wanted)[1]["id"] == 2
        assert call("DELETE", "/rules/control-rule-2")[0] == 200
        assert call("GET", "/v1/rules") == (200, [])
        assert call("POST", "/v1/rules", {**wanted, "optional": True})[1]["id"] == 3
        assert call("POST", "/v1/rules/check") == (200, {})
        assert call("DELETE", "/v1/rules") == (200, {})
        assert proxy.rules == ()

    played(script)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"act": "hang"}, "A proxy cannot carry out 'hang'"),
        ({"act": "drop_request", "group": "g"}, "group is matched in the decoded body of a request"),
        ({"act": "drop_request", "transactional_id": "t"}, "match by api, client_id, node, session, or use"),
        ({"act": "drop_request", "probability": 0.5}, "probability needs more than the header of a request"),
        ({"act": "drop_request", "colour": "red"}, "colour"),
        ({"act": "drop_request", "api": "Produces"}, "did you mean Produce"),
        ({"act": "drop_request", "api": ["Produce", "Fetch"]}, "add a rule for each"),
        ({"act": "drop_request", "seconds": 1}, "drop_request has no seconds"),
        ({"act": "drop_request", "node": 4}, "node 4 is not among"),
        ({"act": "drop_request", "sender": "any"}, "sender"),
        ({"act": "drop_request", "nth": 0}, "nth"),
        ({"act": "delay_request"}, "delay_request needs seconds"),
        ({"act": "respond_error"}, "respond_error needs error"),
        ({"act": "respond_error", "error": "NOT_COORDINATOR"}, "give handled"),
        ({"act": "respond_error", "error": "NO_SUCH", "handled": True}, "'NO_SUCH' is unknown"),
        ({"act": "respond_error", "error": "NONE", "handled": True}, "'NONE' is unknown"),
        ([], "object"),
        ("text", "object"),
    ],
)
def test_what_a_proxy_cannot_play_is_refused(body: object, sentence: str) -> None:
    def script(call: Call, proxy: FrameProxy) -> None:
        status, found = call("POST", "/v1/rules", body)
        assert (status, sentence in found["error"]) == (400, True), found
        assert proxy.rules == ()

    played(script)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ({"act": "drop_request"}, {"on": "request", "kind": "request_dropped", "total": 0, "every": 1}),
        ({"act": "drop_request", "nth": 3}, {"total": 1}),
        ({"act": "drop_request", "nth": 3, "times": 4}, {"total": 4}),
        ({"act": "duplicate_request"}, {"kind": "request_duplicated"}),
        ({"act": "delay_request", "seconds": 0.5}, {"kind": "request_delayed", "delay_ms.low": 500}),
        ({"act": "delay_response", "seconds": 2}, {"kind": "response_delayed", "delay_ms.high": 2000}),
        ({"act": "truncate_response", "size_bytes": 7}, {"kind": "response_truncated", "cut_bytes.low": 7}),
        ({"act": "respond_error", "error": "NOT_COORDINATOR", "handled": True}, {"kind": "response_error", "code": 16}),
        ({"act": "drop_request", "api": "Fetch", "session": True}, {"match.session": True}),
    ],
)
def test_rule_becomes_a_fault(body: object, changed: dict[str, object]) -> None:
    def script(call: Call, proxy: FrameProxy) -> None:
        assert call("POST", "/v1/rules", body)[0] == 201
        (made,) = proxy.rules
        for path, value in changed.items():
            found: Any = made
            for name in path.split("."):
                found = getattr(found, name)
            assert found == value, path

    played(script)


def test_token_is_needed_and_old_paths_need_none() -> None:
    def script(call: Call, proxy: FrameProxy) -> None:  # noqa: ARG001
        assert call("GET", "/v1/rules")[0] == 401
        assert call("POST", "/v1/rules", {"act": "drop_request"})[0] == 401
        assert call("GET", "/rules") == (200, [])

    played(script, "another")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/rules/7", 404), ("POST", "/v1/rules/1/kill", 404), ("GET", "/v1/rules/1/wait", 405)],
)
def test_what_does_not_exist_is_said(method: str, path: str, status: int) -> None:
    def script(call: Call, proxy: FrameProxy) -> None:  # noqa: ARG001
        assert call(method, path)[0] == status

    played(script)
