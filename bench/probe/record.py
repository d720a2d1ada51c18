"""Records Apache Kafka's response to each case: ``python -m bench.probe.record RELEASE...``.

It starts each release (``bench/targets/kafka.toml``) with one node, and ends it afterwards.
"""

import sys
from pathlib import Path

from bench.probe import kafka_responses
from bench.probe.broker import Target, meet
from bench.probe.cases import all_cases
from bench.probe.play import play
from bench.probe.probe_command import target
from bench.probe.reporters import outcome_summary


def record(own: Target, release: str, folder: Path = kafka_responses.FOLDER) -> str:
    """Play all cases and write the release's file. Return the summary."""
    outcomes = play(meet(own.address), all_cases(), target=own)
    text = "\n".join(kafka_responses.lines(release, outcomes)) + "\n"
    (folder / f"{release}.txt").write_text(text, encoding="utf-8")
    return outcome_summary(outcomes, sum(outcome.seconds for outcome in outcomes))


def main(releases: list[str]) -> None:
    for release in releases:
        with target(f"kafka@{release}/1", kafka_responses.SETTINGS) as own:
            print(record(own, release))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
