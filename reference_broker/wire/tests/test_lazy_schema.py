"""Schemas that load when they are first wanted."""

import sys

import pytest

from reference_broker.wire.schema import LazySchema

MODULE = "heartbeat.v4.request"


def test_schema_loads_when_a_class_of_it_is_first_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"kio.schema.{MODULE}", raising=False)
    schema = LazySchema(MODULE)
    assert f"kio.schema.{MODULE}" not in sys.modules
    wanted = schema.HeartbeatRequest
    assert wanted is sys.modules[f"kio.schema.{MODULE}"].HeartbeatRequest
    assert schema.HeartbeatRequest is wanted


def test_class_that_the_schema_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = LazySchema(MODULE).Missing
