"""Files of workers on other machines. Locust patches a process that imports it, so this runs in another."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.locust.processes import ROOT

PROGRAM = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from bench.locust import exchange
folder, program = Path(sys.argv[1]), sys.argv[2]
files, parts, unanswered, worst = exchange.FilesOfWorkers(folder / "there"), [], 0, 0

class Runner:
    def register_message(self, name, listener):
        if name == exchange.FILE:
            self.listener = listener

    def send_message(self, name, data):
        global unanswered, worst
        unanswered += 1
        worst = max(worst, unanswered)
        parts.append(len(data["data"]))
        failure = files.take(data["name"], data["at"], data["data"], data["is_last"])
        if program == "lost part" and len(parts) == 1:
            (folder / "there" / "part.parquet.open").write_bytes(b"")
        import gevent
        gevent.spawn(self.respond, failure)

    def respond(self, failure):
        global unanswered
        unanswered -= 1
        self.listener(SimpleNamespace(data={"failure": failure}))

worker = exchange.WorkerExchange(Runner())
error = ""
try:
    worker.send_file(folder / "here" / sys.argv[3])
except OSError as failure:
    error = str(failure)
print(json.dumps({"parts": parts, "worst": worst, "error": error, "limit": exchange.PART_BYTES}))
"""

pytestmark = pytest.mark.live


def sent(folder: Path, content: bytes, name: str = "part.parquet", program: str = "") -> dict[str, Any]:
    (folder / "here").mkdir()
    (folder / "here" / name).write_bytes(content)
    words = [sys.executable, "-c", PROGRAM, str(folder), program, name]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("size", [0, 1, 1 << 19, (1 << 19) + 1, 1_700_000])
def test_file_goes_in_bounded_parts_one_after_the_other(tmp_path: Path, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    transfer = sent(tmp_path, content)
    assert transfer["error"] == ""
    assert (tmp_path / "there" / "part.parquet").read_bytes() == content
    assert max(transfer["parts"]) <= transfer["limit"]
    assert len(transfer["parts"]) == max(1, -(-size // transfer["limit"]))
    assert transfer["worst"] == 1, "a part went before the one before it was written"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["part.parquet"]


def test_file_of_which_a_part_is_missing_is_no_file(tmp_path: Path) -> None:
    transfer = sent(tmp_path, bytes(1_700_000), program="lost part")
    assert transfer["error"] == "a part of part.parquet is missing before its byte 524288"
    assert not (tmp_path / "there" / "part.parquet").exists()


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    transfer = sent(tmp_path, b"x", name=".hidden")
    assert "'.hidden' is no name for a file of a worker" in transfer["error"]
    assert not (tmp_path / "there").exists()
