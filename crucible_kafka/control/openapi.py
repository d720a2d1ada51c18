"""The OpenAPI document of the control API, made from its operations."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec

from crucible_kafka.control.operation import Operation
from crucible_kafka.control.operations import operation

REFERENCE: Final = "#/components/schemas/{name}"
STATUSES: Final = {
    "400": "The request is wrong: an argument is missing, unknown or cannot be.",
    "401": "The token of the ready line is missing or wrong.",
    "403": "A web page sent the request.",
    "404": "There is no such path, node or rule.",
    "405": "The path has another method.",
    "409": "It is not possible now: a node does not run, a topic does not exist, the cluster has one node only.",
    "411": "The body has no Content-Length.",
    "413": "The body is too large.",
    "422": "An assertion failed: a rule never fired, or a guarantee of delivery is violated.",
    "500": "A node did not start, or Crucible has a defect.",
    "503": "Too many connections are open.",
    "504": "It has not taken effect in time.",
}
"""The meaning of each status of an error. Each comes with ``{"error": sentence}``."""


@cache
def document() -> dict[str, Any]:
    """Return the document. It must not be changed."""
    types = [each for one in operation.listed for each in (one.path_type, one.query_type, one.body_type)]
    results = [one.result for one in operation.listed if one.result is not None]
    schemas, components = msgspec.json.schema_components([*types, *results], ref_template=REFERENCE)
    result_schemas = iter(schemas[len(types) :])
    paths: dict[str, dict[str, Any]] = {}
    for one in operation.listed:
        path_type, query_type, body_type = (
            components[each.__name__] for each in (one.path_type, one.query_type, one.body_type)
        )
        result = {"type": "object"} if one.result is None else next(result_schemas)
        entry: dict[str, Any] = {
            "operationId": one.name,
            "tags": [one.section],
            "summary": summary(one),
            "description": " ".join(one.text.split()),
            "parameters": [*_parameters("path", path_type), *_parameters("query", query_type)],
            "responses": {
                str(one.status): {"description": "Done.", "content": _json(result)},
                "default": {"$ref": "#/components/responses/Error"},
            },
        }
        if body_type["properties"]:
            entry["requestBody"] = {
                "required": bool(body_type["required"]),
                "content": _json({"$ref": REFERENCE.format(name=one.body_type.__name__)}),
            }
        paths.setdefault(one.path, {})[one.method.lower()] = entry
    used = {name: component for name, component in components.items() if not re.search("(Path|Query)$", name)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Crucible control API",
            "version": _version(),
            "description": "A Kafka cluster for tests, and faults in its requests and responses (crucible serve).",
        },
        "security": [{"token": []}],
        "tags": [{"name": name} for name in dict.fromkeys(one.section for one in operation.listed)],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Of the ready line."}},
            "responses": {
                "Error": {
                    "description": " ".join(f"{status}: {text}" for status, text in STATUSES.items()),
                    "content": _json({"$ref": REFERENCE.format(name="Error")}),
                }
            },
            "schemas": {
                **{name: each for name, each in used.items() if each.get("properties")},
                "Error": {
                    "title": "Error",
                    "type": "object",
                    "properties": {"error": {"type": "string", "description": "One sentence that says what to do."}},
                    "required": ["error"],
                },
            },
        },
    }


def summary(one: Operation) -> str:
    """Return the first sentence of an operation's docstring."""
    paragraph = " ".join(one.text.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


def _parameters(place: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, each in schema["properties"].items():
        own = {key: value for key, value in each.items() if key != "description"}
        parameter = {"name": name, "in": place, "required": name in schema["required"], "schema": own}
        if "description" in each:
            parameter["description"] = each["description"]
        found.append(parameter)
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _version() -> str:
    try:
        return version("crucible-kafka")
    except PackageNotFoundError:  # A clone without an installation.
        return "0"
