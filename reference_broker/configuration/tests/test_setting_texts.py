"""The text of a setting in DescribeConfigs is read alone, so it is complete and has the unit of the value."""

import re

import pytest

from reference_broker.configuration.broker_config import BROKER_KEYS
from reference_broker.configuration.setting import ConfigKey
from reference_broker.configuration.topic_config import TOPIC_KEYS

KEYS = [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]
WITHOUT_UNIT = re.compile(r"\b(so (many|much|long)|this (many|much))\b", re.IGNORECASE)
UNITS = {".ms": re.compile(r"\b(ms|milliseconds)\b"), ".bytes": re.compile(r"\b[Bb]ytes\b")}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_text_of_a_setting_is_complete(key: ConfigKey) -> None:
    assert key.doc[0].isupper()
    assert key.doc.endswith(".")
    assert len(key.doc.split()) > 2, key.doc
    assert not WITHOUT_UNIT.search(key.doc), key.doc


@pytest.mark.parametrize("key", [key for key in KEYS if key.name.endswith(tuple(UNITS))], ids=lambda key: key.name)
def test_text_of_a_setting_has_its_unit(key: ConfigKey) -> None:
    unit = next(unit for ending, unit in UNITS.items() if key.name.endswith(ending))
    assert unit.search(key.doc), key.doc
