"""An adapter that misbehaves in one way, which its argument names. It needs no client."""

import json
import signal
import subprocess
import sys
import time
from typing import Any

from crucible_kafka.clients.adapter import AdapterCommand

ABOUT = {"schema": 1, "name": "scripted", "version": "1.0", "features": ["consumer"]}


def scripted(way: str) -> AdapterCommand:
    return AdapterCommand(way, [sys.executable, __file__, way])


def say(message: Any) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201


def main(way: str) -> None:
    if way == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hello":
            about = ABOUT | ({"schema": 0} if way == "older" else {})
            if way == "incomplete":
                del about["features"]
            if way != "silent":
                say({"id": request["id"], "result": about})
            if way == "exits":
                sys.exit("the client is broken")
            if way == "garbage":
                print("Hello, world", flush=True)  # noqa: T201
            if way == "unknown-event":
                say({"event": "dance", "client": "consumer-1"})
            if way == "child":
                subprocess.Popen(["sleep", "1000"], start_new_session=True)
            while way == "flood":
                say({"event": "log", "client": "consumer-1", "text": "more"})
        elif request["op"] == "open" and way == "cannot-open":
            say({"id": request["id"], "error": {"name": "ConfigError", "message": "no such setting"}})
        elif way == "hangs":
            time.sleep(1000)
        elif request["op"] == "poll" and way == "invents":
            record = {"topic": "topic-1", "partition": 0, "offset": 0, "value": "invented"}
            say({"event": "record", "client": request["client"], **record})
            say({"id": request["id"], "result": {}})
        else:
            say({"id": request["id"], "result": {}})
    while way == "deaf":
        time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1])
