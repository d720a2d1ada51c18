"""Records what Apache Kafka answers to each case: ``python -m bench.probe.record [HOST:PORT RELEASE]``.

Without words it starts the release whose jars ``bench.peers`` fetches, and ends it afterwards.
"""

import sys
import tempfile
from pathlib import Path

from bench.peers.jars import VERSION
from bench.peers.systems import KAFKA
from bench.probe import kafka_answers
from bench.probe.broker import Address, meet
from bench.probe.command import address_of
from bench.probe.play import play
from bench.probe.registry import all_cases
from bench.probe.told.text import summary


def record(address: Address, release: str, folder: Path = kafka_answers.FOLDER) -> str:
    """Plays all cases and writes the release's file. Returns the summary."""
    outcomes = play(meet(address), all_cases())
    text = "\n".join(kafka_answers.lines(release, outcomes)) + "\n"
    (folder / f"{release}.txt").write_text(text, encoding="utf-8")
    return summary(outcomes, sum(each.seconds for each in outcomes))


def main(words: list[str]) -> None:
    if words:
        target, release = words
        print(record(address_of(target), release))  # noqa: T201
        return
    with tempfile.TemporaryDirectory() as folder, KAFKA.launched(Path(folder), 1, {}) as cluster:
        print(record(("127.0.0.1", cluster.ports[0]), VERSION))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
