"""librdkafka's mock cluster comes with the Python package confluent-kafka, which the tests need, too."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from bench.targets.model import TargetError

PACKAGE = "confluent-kafka"
WORDS = ()


def provide(version: str) -> Mapping[str, str]:
    """Raise TargetError unless this version is installed."""
    try:
        there = installed(PACKAGE)
    except PackageNotFoundError:
        there = "no version"
    if there != version:
        raise TargetError(f"librdkafka's mock cluster needs {PACKAGE} {version}, and here is {there}: pip install it.")
    return {}
