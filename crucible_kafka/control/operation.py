"""Operations of the control API: decorated functions, whose signatures and docstrings determine all else.

The HTTP server takes the path, the arguments and their types from it, and so does the OpenAPI document. So the two
cannot differ.
"""

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from crucible_kafka.library import Cluster, CrucibleTimeout

PREFIX: Final = "/v1"
MAX_WAIT_S: Final = 600.0
BUSY_LIMIT_S: Final = 60.0
"""The longest wait for another verb on the nodes."""

Limit: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_WAIT_S, description="The longest wait, in seconds.")]


class Refusal(Exception):  # noqa: N818 - says what happened
    """A request that is refused, with the HTTP status and the sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """The context of every operation, beside its arguments."""

    kafka: Cluster
    nodes_lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other verb start, end or pause a node meanwhile, or change what holds for all nodes, such as rules: a
        node that starts gets these, and takes no commands yet. Raise CrucibleTimeout."""
        if not self.nodes_lock.acquire(timeout=BUSY_LIMIT_S):
            raise CrucibleTimeout(f"After {BUSY_LIMIT_S:g} s, another verb still starts or ends a node.")
        try:
            yield
        finally:
            self.nodes_lock.release()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation."""

    name: str
    method: str
    path: str
    """With ``{argument}`` where an argument is part of it."""
    section: str
    text: str
    """The docstring: one sentence, and perhaps more paragraphs."""
    status: int
    """Of a response without an error."""
    path_type: type[msgspec.Struct]
    query_type: type[msgspec.Struct]
    body_type: type[msgspec.Struct]
    result: Any
    """The type of the response's body; None for an empty object."""
    act: Callable[..., Any]

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("/".join(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", part) for part in self.path.split("/")))

    def call(self, call: Call, path: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Any:
        """Carry it out. Raise msgspec.MsgspecError for arguments that cannot be, and what the library raises."""
        arguments = (
            msgspec.convert(path, self.path_type, strict=False),
            msgspec.convert(query, self.query_type, strict=False),
            msgspec.json.decode(body.strip() or b"{}", type=self.body_type),
        )
        given = {name: getattr(argument, name) for argument in arguments for name in argument.__struct_fields__}
        return self.act(call, **given)


@dataclass(slots=True)
class Operations:
    """A list of operations that decorators fill."""

    section: str = ""
    """Of what is declared next."""
    listed: list[Operation] = field(default_factory=list)

    def __call__(self, method: str, path: str, status: int = 200) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare the function below as an operation.

        An argument that is in the path comes from there, another one from the query of a GET or DELETE, or from the
        JSON object of a POST.
        """

        def declare(act: Callable[..., Any]) -> Callable[..., Any]:
            self.listed.append(self._of(act, method, PREFIX + path, status))
            return act

        return declare

    def _of(self, act: Callable[..., Any], method: str, path: str, status: int) -> Operation:
        hints = get_type_hints(act, include_extras=True)
        in_path = re.findall(r"\{(\w+)\}", path)
        fields: dict[str, list[Any]] = {"path": [], "query": [], "body": []}
        for name, parameter in list(inspect.signature(act).parameters.items())[1:]:
            place = "path" if name in in_path else "body" if method == "POST" else "query"
            default = () if parameter.default is inspect.Parameter.empty else (parameter.default,)
            fields[place].append((name, hints[name], *default))
        camel = "".join(part.capitalize() for part in act.__name__.split("_"))
        path_type, query_type, body_type = (
            msgspec.defstruct(f"{camel}{place.capitalize()}", each, kw_only=True, forbid_unknown_fields=True)
            for place, each in fields.items()
        )
        text = inspect.cleandoc(act.__doc__ or "")
        result = hints.get("return")
        return Operation(
            act.__name__,
            method,
            path,
            self.section,
            text,
            status,
            path_type,
            query_type,
            body_type,
            None if result is type(None) else result,
            act,
        )
