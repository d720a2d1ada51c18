"""Keys and versions that the registry lists for an API's module, for tests that name APIs by their modules."""

from types import ModuleType

from reference_broker.apis.registry import MODULES, SERVED
from reference_broker.wire.apis import ApiKey

_KEYS = {f"reference_broker.apis.{name}": ApiKey(key) for key, name in MODULES.items()}


def key_of(module: ModuleType) -> ApiKey:
    return _KEYS[module.__name__]


def newest_version(module: ModuleType) -> int:
    """Return the greatest version that is served."""
    return SERVED[key_of(module)][1]


def versions_of(module: ModuleType) -> range:
    low, high = SERVED[key_of(module)]
    return range(low, high + 1)
