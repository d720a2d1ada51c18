"""Definition of one setting: its type, range and meaning, and how its text is parsed. A bad text is refused with one
sentence.

The types (``Kind``) and their numbers are those of DescribeConfigs. Some settings can also be given in a coarser unit
(``OTHER_UNITS``).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, TypeVar

Value = bool | int | float | str
V = TypeVar("V", bool, int, float, str)

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigError(ValueError):
    """The configuration is refused. The message is one sentence that names the key and what to do."""


class Kind(IntEnum):
    """The type of a value, as DescribeConfigs numbers it."""

    UNKNOWN = 0
    """of a name that no setting has"""
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_LIMITS = {
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (-(2**31), INT_MAX),
    Kind.LONG: (-(2**63), LONG_MAX),
}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The declaration of one setting. ``name`` is spelled as in Kafka. ``doc`` is its meaning in one sentence.
    ``at_least`` and ``at_most`` are inclusive. ``choices`` are the allowed values of a string, or of the items of a
    list. ``pattern`` is what the whole text must match, and ``expected`` says that in words. ``is_internal``: it is
    described only where it is set, and its default stands for "not set"."""

    name: str
    kind: Kind
    default: Value
    doc: str
    at_least: int | float | None = None
    at_most: int | float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    expected: str = ""
    is_internal: bool = False

    def parse(self, text: str) -> Value:
        """Return the value that ``text`` stands for. Raise ConfigError if it is no value of this setting."""
        text = text.strip()
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ConfigError(f"{self.name} is {text!r}: give {self.expected}.")
        if self.kind is Kind.BOOLEAN:
            return self._boolean(text)
        if self.kind is Kind.STRING:
            return self._choice(text)
        if self.kind is Kind.LIST:
            if not text:
                return ""
            return ",".join(self._choice(part.strip()) for part in text.split(","))
        return self._number(text)

    def text(self, value: Value) -> str:
        """Return the text of a value as DescribeConfigs shows it. Booleans are in lower case."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)

    def _boolean(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{self.name} is {text!r}: give true or false.")
        return text.lower() == "true"

    def _choice(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name} is {text!r}: give {' or '.join(self.choices)}.")
        return text

    def _number(self, text: str) -> int | float:
        try:
            if "_" in text:
                raise ValueError("only Python reads 1_000 as a number")
            value = float(text) if self.kind is Kind.DOUBLE else int(text)
        except ValueError:
            raise ConfigError(f"{self.name} is {text!r}: give {self._range()}.") from None
        low, high = _LIMITS.get(self.kind, (None, None))
        least = low if self.at_least is None else self.at_least
        most = high if self.at_most is None else self.at_most
        if not (least is None or value >= least) or not (most is None or value <= most):
            raise ConfigError(f"{self.name} is {text}: give {self._range()}.")
        return value

    def _range(self) -> str:
        what = "a number" if self.kind is Kind.DOUBLE else "a whole number"
        if self.at_least is not None and self.at_most is not None:
            return f"{what} from {self.at_least} to {self.at_most}"
        if self.at_least is not None:
            return f"{what} of at least {self.at_least}"
        return f"{what} that fits {self.kind.name.lower()}"


KIND, DOC, AT_LEAST, AT_MOST, CHOICES, TOPIC = "kind", "doc", "at_least", "at_most", "choices", "topic"
"""Under these keys the ``metadata`` of a dataclass field keeps the declaration of its setting."""


def setting(
    default: V,
    doc: str,
    *,
    kind: Kind | None = None,
    at_least: int | float | None = None,
    at_most: int | float | None = None,
    choices: tuple[str, ...] = (),
) -> V:
    """Declare a field of a frozen configuration. Without ``kind`` the type is that of the default. A whole number is
    then an INT."""
    metadata = {DOC: doc, KIND: kind or _kind_of(default), AT_LEAST: at_least, AT_MOST: at_most, CHOICES: choices}
    made: V = field(default=default, metadata=metadata)
    return made


def _kind_of(default: Value) -> Kind:
    kinds: dict[type, Kind] = {bool: Kind.BOOLEAN, str: Kind.STRING, int: Kind.INT, float: Kind.DOUBLE}
    return kinds[type(default)]


def key_of(name: str, default: Value, metadata: Mapping[str, Any]) -> ConfigKey:
    """Return the setting that a field of ``setting()`` declares. ``metadata`` is that of the field."""
    topic: ConfigKey | None = metadata.get(TOPIC)
    if topic is not None:
        return replace(topic, name=name)
    return ConfigKey(
        name, metadata[KIND], default, metadata[DOC], metadata[AT_LEAST], metadata[AT_MOST], metadata[CHOICES]
    )


_FILES_GO_AT_ONCE = "files are deleted at once"
_SEGMENTS_GROW = "segments grow as they are written"
_NO_QUOTAS = "replication is not throttled"
WITHOUT_EFFECT: Mapping[str, str] = {
    "file.delete.delay.ms": _FILES_GO_AT_ONCE,
    "follower.replication.throttled.replicas": _NO_QUOTAS,
    "leader.replication.throttled.replicas": _NO_QUOTAS,
    "log.preallocate": _SEGMENTS_GROW,
    "log.segment.delete.delay.ms": _FILES_GO_AT_ONCE,
    "preallocate": _SEGMENTS_GROW,
    **dict.fromkeys(
        ("follower.replication.throttled.rate", "leader.replication.throttled.rate"),
        _NO_QUOTAS,
    ),
    **dict.fromkeys(
        (
            "background.threads",
            "log.cleaner.threads",
            "num.io.threads",
            "num.network.threads",
            "num.recovery.threads.per.data.dir",
            "num.replica.fetchers",
            "remote.log.manager.expiration.thread.pool.size",
            "remote.log.reader.threads",
        ),
        "one thread does all the work",
    ),
    "log.cleaner.io.buffer.load.factor": "the cleaner's map has no load factor",
    "log.cleaner.io.buffer.size": "the cleaner has no such buffers",
    "max.connection.creation.rate": "connections are not limited by their rate",
    "max.connections.per.ip": "connections are not limited by address",
    "remote.log.manager.copy.max.bytes.per.second": "the remote tier has no quotas",
    "remote.log.manager.fetch.max.bytes.per.second": "the remote tier has no quotas",
    "sasl.kerberos.min.time.before.relogin": "there is no SASL",
}
"""Kafka's settings that change nothing here, and why. Tools copy them from cluster to cluster, so they are taken; the
log has a line for each that is set."""

REMOVED = ("leader.imbalance.per.broker.percentage",)
"""Settings of older releases of Kafka that have no effect in any release with KRaft. They are refused."""


MAX_COMPARED_CHARACTERS = 100
"""A name of more characters is not compared with known names, which takes time. No setting has such a name."""


MAX_VALUE_BYTES = 32_767
"""The longest text of a setting. Versions of DescribeConfigs that are not flexible cannot carry a longer one."""


def check_lengths(pairs: Mapping[str, str]) -> None:
    """Raise ConfigError for a value of more than MAX_VALUE_BYTES."""
    for name, text in pairs.items():
        if len(text) > MAX_VALUE_BYTES or len(text.encode()) > MAX_VALUE_BYTES:
            raise ConfigError(f"{name} has a value of more than {MAX_VALUE_BYTES} bytes: give a shorter one.")


def parse_all(keys: Mapping[str, ConfigKey], pairs: Mapping[str, str], what: str) -> dict[str, Value]:
    """Return values by the names of their keys. Raise ConfigError for a bad value or an unknown key. The message
    names the kind of configuration, which is ``what``."""
    values: dict[str, Value] = {}
    for name, text in pairs.items():
        key = keys.get(name)
        if key is None and name in REMOVED:
            raise ConfigError(f"{name} would have no effect on this broker; remove it.")
        if key is None:
            near = (
                get_close_matches(name.replace("_", ".").lower(), keys, n=1)
                if len(name) <= MAX_COMPARED_CHARACTERS
                else []
            )
            hint = f"did you mean {near[0]}?" if near else "remove it."
            raise ConfigError(f"Unknown {what} config name: {name}; {hint}")
        values[name] = key.parse(text)
    return values


@dataclass(frozen=True, slots=True)
class OtherUnit:
    """A setting that sets the same as ``stands_for``, in another unit. Its value times ``factor`` is in the unit of
    ``stands_for``."""

    key: ConfigKey
    stands_for: str
    factor: int


def _other(name: str, stands_for: str, factor: int) -> tuple[str, OtherUnit]:
    key = ConfigKey(name, Kind.INT, -1, f"{stands_for} in another unit.", at_least=-1, at_most=INT_MAX)
    return name, OtherUnit(key, stands_for, factor)


OTHER_UNITS: Mapping[str, OtherUnit] = dict(
    (
        _other("log.retention.minutes", "log.retention.ms", 60_000),
        _other("log.retention.hours", "log.retention.ms", 3_600_000),
        _other("log.roll.hours", "log.roll.ms", 3_600_000),
        _other("log.roll.jitter.hours", "log.roll.jitter.ms", 3_600_000),
    )
)
"""The settings in coarser units. The finer of two units comes first, because it wins."""

assert INT_MAX * 3_600_000 < LONG_MAX
