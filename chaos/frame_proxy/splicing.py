"""Puts changed values into an answer without encoding all of it again, so that what our codecs do not know stays.

A newer broker may add tagged fields that our codecs skip. Encoded again, the answer would lack them.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

from chaos.raw_frames import LENGTH_BYTES, RawFrame
from reference_broker.wire.apis import ApiKey, is_flexible
from reference_broker.wire.fetch_responses import write_endpoints
from reference_broker.wire.primitives import compact_string, legacy_string, uvarint

Pieces: TypeAlias = Sequence[tuple[bytes, bytes]]
"""What stands in the answer and what is to stand there, in the order in which it does."""
ENDPOINTS: Final = 0
"""The tagged field of Fetch and Produce with the nodes' addresses."""
_INT32: Final = Struct(">i")
_KEY: Final = Struct(">hhh")


def spliced(raw: RawFrame, wanted: Any, pieces: Pieces, last_first: bool = False) -> RawFrame | None:
    """Returns the answer with each piece replaced. With ``last_first`` the pieces are looked for from the end. Returns
    None unless the result says what is ``wanted`` and nothing else."""
    data = bytes(raw.data)[LENGTH_BYTES:]
    at = 0
    for old, new in pieces:
        found = data.rfind(old) if last_first else data.find(old, at)
        if found < 0:
            return None
        data = data[:found] + new + data[found + len(old) :]
        at = found + len(new)
    made = raw.replaced(_INT32.pack(len(data)) + data)
    return made if made.value() == wanted else None


def address_pieces(flexible: bool, node_id: str, old: Iterable[Any], new: Iterable[Any]) -> Pieces:
    """A node's ID, host and port stand side by side in every answer that has them."""
    string = compact_string if flexible else legacy_string

    def written(each: Any) -> bytes:
        return _INT32.pack(int(getattr(each, node_id))) + string(each.host) + _INT32.pack(int(each.port))

    return [(written(one), written(other)) for one, other in zip(old, new, strict=True)]


def endpoint_pieces(old: Sequence[Any], new: Sequence[Any]) -> Pieces:
    """The addresses stand in a tagged field at the end, with its size in front."""
    return [(write_endpoints(ENDPOINTS, old)[1:], write_endpoints(ENDPOINTS, new)[1:])]


def version_pieces(version: int, old: Sequence[Any], new: Sequence[Any]) -> Pieces:
    """All versions that are offered, with their number in front: some may go."""
    flexible = is_flexible(int(ApiKey.API_VERSIONS), version)

    def written(keys: Sequence[Any]) -> Iterator[bytes]:
        yield uvarint(len(keys) + 1) if flexible else _INT32.pack(len(keys))
        for each in keys:
            yield _KEY.pack(int(each.api_key), int(each.min_version), int(each.max_version)) + b"\0" * flexible

    return [(b"".join(written(old)), b"".join(written(new)))]
