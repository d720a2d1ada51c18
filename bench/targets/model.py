"""A target's file as frozen values. It replaces placeholders such as ``{port}`` in texts.

README.md explains every key. Braces that are no placeholder stay as they are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from scenarios.declared import number, settings, text, texts, whole


class TargetError(Exception):
    """A target cannot be had as wanted. The message is one sentence that says what to do."""


OF_AN_ADDRESS = ("id", "name", "host", "port", "address")
OF_A_NODE = (
    *OF_AN_ADDRESS,
    "advertised",
    *("ports", "nodes", "replicas", "version", "folder", "data", "hosts", "root", "python"),
    *("cluster_id", "voters", "peers", "settings", "features"),
)
OF_A_COMMAND = ("id", "address")
OF_A_SETTING = ("key", "value")
SEVERAL = "..."
_PLACEHOLDER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")


def named_in(template: str) -> Iterator[str]:
    return (found[1] for found in _PLACEHOLDER.finditer(template))


def filled(template: str, words: Mapping[str, str]) -> str:
    """Replace the placeholders. Raise TargetError for an unknown one."""

    def put(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise TargetError(f"the placeholder {match[0]} is unknown; known here: {', '.join(sorted(words))}")
        return words[match[1]]

    return _PLACEHOLDER.sub(put, template)


def filled_list(templates: Sequence[str], words: Mapping[str, str], several: Mapping[str, Sequence[str]]) -> list[str]:
    """Do the same for the words of a command. A word that is ``{name...}`` becomes those that ``several`` has for the
    name, or the parts of its text between spaces."""
    found: list[str] = []
    for word in templates:
        alone = _PLACEHOLDER.fullmatch(word)
        if alone is None or alone[2] != SEVERAL:
            found.append(filled(word, words))
        elif alone[1] in several:
            found.extend(several[alone[1]])
        else:
            found.extend(filled(word, words).split())
    return found


OFFERS = ("topics", "replicas", "groups", "transactions", "disk")
"""Features that a broker may lack, by the words of a file's ``lacks``. Without ``topics`` nobody can create any, and
without ``disk`` a restart loses all that it had."""
LINKS = ("none", "peers", "hosts")
"""Ways to put the proxies of directed links between nodes. ``peers``: a node gets their addresses as those of the other
nodes (``{peers}``). ``hosts``: nodes have names, which each looks up in a hosts file of its own (``{hosts}``)."""

Words = Annotated[tuple[str, ...], texts(may_be_empty=True)]
Pairs = Annotated[tuple[tuple[str, str], ...], settings()]
Seconds = Annotated[float, number(0.1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """The description of one node's process. Texts may hold placeholders (``placeholders.py``)."""

    command: Annotated[tuple[str, ...], texts()]  # starts the process
    prepare: Words = ()  # a command that is run to its end once, before the first start
    files: Pairs = ()  # written into the node's folder before ``prepare``
    environment: Pairs = ()
    ports: Words = ()  # names of the ports that it needs beside the one for clients
    peer: str = ""
    """The text for each node in ``{voters}`` and ``{peers}``."""
    setting: Words = ()
    """The words of the command for each broker setting of a scenario, with ``{key}`` and ``{value}``."""
    feature: Words = ()
    """The same for each feature that begins at another level than the broker's own default."""
    words: Pairs = ()
    observer: Pairs = ()
    """Further placeholders with their texts. Those of ``observer`` hold for nodes without a vote, instead. If there are
    none, there are no such nodes."""
    links: Annotated[str, text(LINKS)] = "none"
    one_process: bool = False
    """One process is all nodes of the cluster."""
    ready: str = ""
    """A shell command that succeeds once the node serves; if empty, a response to ApiVersions is awaited."""
    ready_limit_s: Seconds = 60.0
    stop_limit_s: Seconds = 40.0
    """After SIGTERM and this time the node gets SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Shell commands that do something to a node that is not our process. An empty one cannot be done."""

    start: str = ""
    ready: str = ""  # succeeds once the node serves
    alive: str = ""  # succeeds while the node runs
    stop: str = ""
    kill: str = ""
    pause: str = ""
    resume: str = ""
    log: str = ""  # prints the last lines of its log
    ready_limit_s: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """One target: processes that the suite starts, nodes that are reached by shell commands, or addresses alone."""

    name: str
    title: str
    version: str = ""
    provider: str = ""  # a module of ``bench.targets.providers``, which has or makes what the command needs
    nodes: Annotated[int, whole(1, 9)] = 1  # number of nodes started by default
    lacks: Annotated[tuple[str, ...], texts(OFFERS, may_be_empty=True)] = ()
    addresses: Words = ()  # nodes that run already
    node: NodeFile | None = None  # how the suite starts a node
    commands: Commands | None = None  # shell commands for nodes that run elsewhere; they need ``addresses``


@dataclass(frozen=True, slots=True)
class Chosen:
    """A target as the user chose it."""

    text: str  # the argument of --target
    file: TargetFile
    version: str  # may be empty
    nodes: int  # 0 if Metadata must be fetched for it
