"""``crucible nightly``, ``index``, ``evidence`` and ``upgrade-path``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

_STAGES = ("search", "guided", "live", "brokers", "clients", "bench", "checks", "suites")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible nightly --hours 8"
    "\n  ./crucible nightly --hours 0.1 --only search"
    "\n  ./crucible nightly --resume"
    "\n  30 22 * * *  cd CLONE && ./crucible nightly --hours 8    (a line of crontab)"
)
@click.option(
    "--hours", type=click.FloatRange(0, 24, min_open=True), default=8.0, show_default=True, help="The budget."
)
@click.option("--nights", type=click.Path(path_type=Path), help="Folder of all nights (default: nights).")
@click.option("--seed", type=click.IntRange(0), help="The night's first seed (default: that of the day, in UTC).")
@click.option("--only", multiple=True, type=click.Choice(_STAGES), help="Play only these stages.")
@click.option("--resume", is_flag=True, help="Go on with the newest night, which was stopped.")
def nightly(hours: float, nights: Path | None, seed: int | None, only: Sequence[str], resume: bool) -> None:
    """Play a night: as much as fits into a budget of hours, with new seeds, kept as one folder in nights/.

    The stages are search (seeds of all scenarios in the simulator), guided (changed schedules of the swarms, from a
    corpus that nights hand on), live (some of them with real processes), brokers (the probe and scenarios on other
    brokers), clients (the cases of crucible client on the bundled clients), bench (rows of the benchmark beside Apache
    Kafka), checks (tests that take too long for a push) and suites (other people's tests of their clients). Each has
    its share of the time. What was not played for longest comes first.

    A mutant is planted in each night, and the search must find it. Each seed that turns red is made smaller, kept in
    the night's folder as a candidate for scenarios/regressions, played three times with real processes, and traced back
    to the first commit since the last night that fails.

    A night that was stopped or killed goes on with what is left of its budget, by --resume or by the same command
    within a day. Exit code 1: the night is red, 3: it shows nothing, 4: it crashed.
    """
    from campaigns.nights.night import NIGHTS, NightOptions, NightRefusal
    from campaigns.nights.nights_command import run
    from crucible_kafka.run_folder import command_line
    from crucible_kafka.terminal import one_sentence, progress

    options = NightOptions(hours, nights or NIGHTS, seed, tuple(only), resume, command_line())
    with one_sentence(NightRefusal):
        sys.exit(run(options, progress))


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible index"
    "\n  ./crucible index --nights kept/nights --out site"
    "\n  ./crucible index --out nights.html"
)
@click.option("--nights", type=click.Path(path_type=Path), help="Folder of the nights (default: nights).")
@click.option(
    "--out", type=click.Path(path_type=Path), help="An .html file, or a folder (default: that of the nights)."
)
def index(nights: Path | None, out: Path | None) -> None:
    """Show the nights on one page: the last one, failures, rates, figures beside the peer, and the probe.

    The page is one file and needs no server. It links to the runs that the nights kept. Its figures show the notes in
    annotations.toml beside the nights.
    """
    from crucible_kafka.terminal import need_java, one_sentence, shown

    need_java()
    from crucible_kafka.run_folder import ROOT
    from reports.errors import SetupError
    from reports.index.write import write_index
    from reports.night import NightError

    with one_sentence(NightError, SetupError):
        page, last = write_index(nights or ROOT / "nights", out)
    click.echo(f"last night ({last.night.night}): {'red' if last.is_red else 'green'}. {last.line}")
    click.echo(f"index: {shown(page)}")


@click.command(
    epilog="\b\nExamples:"
    "\n  ./crucible evidence"
    "\n  ./crucible evidence kfake tansu"
    "\n  ./crucible evidence tansu --case fetch/session/wrong-epoch"
    "\n  ./crucible evidence kafka --scenario 1 --scenario 27 --only-scenarios"
    "\n  ./crucible evidence --client kafka-python --client aiokafka"
    "\n  ./crucible evidence --pages"
)
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--case", "cases", multiple=True, metavar="ID", help="Play this case only, and keep the other cells.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Play this scenario, too.")
@click.option("--only-scenarios", is_flag=True, help="Do not play the probe.")
@click.option(
    "--client", "clients", multiple=True, metavar="ADAPTER", help="Play the cases of crucible client instead."
)
@click.option("--pages", is_flag=True, help="Play nothing, and write the pages from what is kept.")
def evidence(
    targets: Sequence[str],
    cases: Sequence[str],
    scenarios: Sequence[str],
    only_scenarios: bool,
    clients: Sequence[str],
    pages: bool,
) -> None:
    """Play the probe three times on the bundled targets, or the cases of crucible client on clients, and write
    docs/evidence.

    TARGET is a target file or its name (bench/targets). Without one these are all that are bundled, but for tansu,
    whose build takes a quarter of an hour or more.
    """
    from bench.peers.node import PeerError
    from bench.probe.cases import UnknownCase
    from bench.targets.model import TargetError
    from campaigns.evidence import evidence_command
    from campaigns.evidence.client_cases import ClientNotPlayed
    from crucible_kafka.terminal import one_sentence, progress

    if clients and (targets or cases or scenarios or only_scenarios):
        raise click.UsageError("--client plays clients: give it without TARGET, --case and --scenario.")
    with one_sentence(UnknownCase, TargetError, PeerError, ClientNotPlayed):
        if pages:
            evidence_command.write(progress)
        elif clients:
            evidence_command.run_clients(clients, progress)
        else:
            evidence_command.run(targets, cases, scenarios, only_scenarios, _refusal, progress)


def _refusal(scenario: str, target: str) -> str:
    """Return why a scenario cannot be played in front of the target, or nothing."""
    from chaos.live.errors import SetupError
    from crucible_kafka.commands.scenario_options import find_scenarios
    from crucible_kafka.live_plays import live_plays

    try:
        live_plays(find_scenarios([scenario], False), None, "", target, False)
    except SetupError as wrong:
        return str(wrong)
    return ""


@click.command(
    "upgrade-path",
    epilog="\b\nExamples:"
    "\n  ./crucible upgrade-path"
    "\n  ./crucible upgrade-path --ablation --figure docs/upgrade-path.svg"
    "\n  ./crucible upgrade-path --kafka --page docs/evidence/upgrade-path.md"
    "\n  ./crucible upgrade-path /var/kafka-logs --topic events --out /srv/upgraded",
)
@click.argument("directory", required=False, type=click.Path(path_type=Path), metavar="[DIRECTORY]")
@click.option("--out", type=click.Path(path_type=Path), help="Empty folder for the new data, the tier and the log.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Take over this topic (default: all but __...).")
@click.option(
    "--expiration-ms", type=click.IntRange(1), default=86_400_000, show_default=True, help="producer.id.expiration.ms."
)
@click.option(
    "--limit", "limit_s", type=click.IntRange(1), default=300, show_default=True, help="Seconds for the uploads."
)
@click.option("--kafka", is_flag=True, help="Apache Kafka 2.7.2 writes the directory; 4.1.1 gets it, too.")
@click.option("--page", type=click.Path(path_type=Path), help="With --kafka: write what came to this Markdown file.")
@click.option("--ablation", is_flag=True, help="Compare with a replay of everything and of the last segment alone.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw the ablation to this SVG file.")
def upgrade_path(
    directory: Path | None,
    out: Path | None,
    topics: Sequence[str],
    expiration_ms: int,
    limit_s: int,
    kafka: bool,
    page: Path | None,
    ablation: bool,
    figure: Path | None,
) -> None:
    """Take a log directory from before Kafka 2.8 over and make it tiered (KAFKA-15195).

    DIRECTORY is that of a stopped broker with ZooKeeper: it has snapshots of producers only for its newest segments. It
    is read and never changed. Without one, a directory is made by hand, and all is deleted at the end.

    A new broker with the old broker's ID starts in OUT/data: it makes its own meta.properties (version 1, the old
    cluster.id) and the topics, whose new IDs its controller draws. It stops, the partitions are copied beside a
    partition.metadata with that ID, and it starts again. Topics get no settings but unlimited retention, since the old
    ones are in ZooKeeper. Then they become tiered, with OUT/tier for a store.

    When all is uploaded, each snapshot in the store is compared with a full replay of the old files, and each segment
    with its old file. Exit code 1: something is missing or differs.
    """
    from bench.peers.node import PeerError
    from campaigns.upgrade import upgrade_command
    from campaigns.upgrade.kafka import LIFE_HEADINGS
    from campaigns.upgrade.kafka_files import UpgradeError
    from campaigns.upgrade.upgrade_command import written
    from campaigns.upgrade.verdict import HEADINGS
    from crucible_kafka.terminal import one_sentence, print_table, progress, shown

    if figure is not None and not ablation:
        raise click.UsageError("--figure draws the ablation: give --ablation, too")
    if page is not None and not kafka:
        raise click.UsageError("--page needs a row of Apache Kafka: give --kafka")
    settings = {"producer.id.expiration.ms": str(expiration_ms)}
    request = upgrade_command.UpgradeRequest(directory, out, topics, settings, limit_s, kafka)
    with one_sentence(UpgradeError, PeerError):
        outcome = upgrade_command.run(request, progress)
    print_table(HEADINGS, [verdict.cells() for verdict in outcome.verdicts])
    if kafka:
        print_table(LIFE_HEADINGS, [life.cells() for life in outcome.lives])
    if page is not None:
        page.write_text(written(outcome), encoding="utf-8")
        click.echo(f"written: {shown(page)}")
    if ablation:
        ablations = upgrade_command.ablated(progress)
        print_table(upgrade_command.ABLATION_HEADINGS, upgrade_command.ablation_rows(ablations))
        if figure is not None:
            from campaigns.upgrade.drawing import drawn

            figure.write_text(drawn(ablations), encoding="utf-8")
            click.echo(f"drawn: {shown(figure)}")
    sys.exit(0 if outcome.is_good else 1)
