"""The process of one node. Its argument is a spec as JSON; commands and results are lines of JSON.

Commands come through stdin: ``{"id": 1, "command": "sessions", "arguments": {}, "limit_s": 10}``. Their results go to
stdout, which also gets the node's ready line. The log goes to stderr. When the process that started it is gone, this
one deletes the cluster's data and ends at once.
"""

import json
import os
import select
import shutil
import signal
import sys
import threading
from typing import Any, Final

from crucible_kafka.library.inside_node import CommandFailed, InsideNode
from reference_broker.serve.main import run_broker

STDIN, STDOUT = 0, 1
CHECK_EVERY_S: Final = 1.0
"""Interval of the check that its parent lives. A forked process of the parent may hold the pipe open."""
FAILED, LATE, BUG = "failed", "late", "bug"
"""Kinds of failures of a command."""


class CommandReader(threading.Thread):
    """Carries out the commands of stdin one after the other. ``folder`` is deleted when the parent is gone."""

    def __init__(self, inside: InsideNode, folder: str) -> None:
        super().__init__(name="commands", daemon=True)
        self._inside = inside
        self._folder = folder
        self._parent = os.getppid()

    def run(self) -> None:
        rest = b""
        while True:
            readable, _, _ = select.select([STDIN], [], [], CHECK_EVERY_S)
            if os.getppid() != self._parent:
                break
            if not readable:
                continue
            data = os.read(STDIN, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                write_line(self._respond(json.loads(line)))
        shutil.rmtree(self._folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def _respond(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            result = self._inside.command(command["command"], command["arguments"], command["limit_s"])
        except CommandFailed as failure:
            return {"id": command["id"], "error": FAILED, "message": str(failure)}
        except TimeoutError:
            return {"id": command["id"], "error": LATE}
        except Exception as bug:
            return {"id": command["id"], "error": BUG, "message": repr(bug)}
        return {"id": command["id"], "result": result}


def write_line(value: dict[str, Any]) -> None:
    data = memoryview(json.dumps(value).encode() + b"\n")
    while data:
        data = data[os.write(STDOUT, data) :]


def main() -> int:
    spec = json.loads(sys.argv[1])
    inside = InsideNode(spec["node_id"], [(name, arguments) for name, arguments in spec["standing"]])
    CommandReader(inside, spec["folder"]).start()
    return run_broker(spec["listen"], spec["data"], spec["node_id"], spec["config"], wrapper=inside.wrapper)


if __name__ == "__main__":
    sys.exit(main())
