"""``DescribeConfigs`` tells what each setting means. The text is read alone, so it is a whole sentence."""

import re

import pytest

from reference_broker.configuration.broker_config import BROKER_KEYS
from reference_broker.configuration.setting import ConfigKey
from reference_broker.configuration.topic_config import TOPIC_KEYS

VERBS = re.compile(
    r"\b(is|are|has|have|may|must|can|gets?|goes?|go|keeps?|carry|lies?|tells?|stands|reach(es)?|waits?|asks?|"
    r"gives?|looks?|uses?|pauses|reads|hold|listens|knows|fetches|take|begins|begin)\b"
)


@pytest.mark.parametrize("key", [*TOPIC_KEYS.values(), *BROKER_KEYS.values()], ids=lambda key: key.name)
def test_the_text_of_a_setting_is_a_sentence(key: ConfigKey) -> None:
    assert key.doc[0].isupper()
    assert key.doc.endswith(".")
    assert VERBS.search(key.doc), key.doc
