"""``crucible clauses``. It imports what it needs only when it runs."""

import sys

import click


@click.command(epilog="\b\nExamples:\n  ./crucible clauses\n  ./crucible clauses --tests")
@click.option("--tests", "show_tests", is_flag=True, help="Show the name of every test, too.")
def clauses(show_tests: bool) -> None:
    """List the clauses, one line each: status, the code that names it, how many tests prove it, the scenarios that
    exercise it, the mutants that lack it. A clause is proven if one of its mutants was killed in the last 30 days and
    300 commits of the room that it breaks; ``crucible mutants`` has the plays. Then lists the behaviours that Kafka's
    own tests assert: status, and how many of our tests show it.

    Exits with 1 if a clause has no test or no mutant, and is not listed as open."""
    from scenarios.clauses import all_clauses
    from scenarios.conformance import all_behaviours

    found = all_clauses()
    for each in found:
        proof = f"{_tests(len(each.tests))} ({len(each.own_tests)} of the broker)" if each.tests else "no test"
        used = f" | scenarios {', '.join(each.scenarios)}" if each.scenarios else ""
        lacking = f" | open: {each.open}" if each.open else f" | mutants {', '.join(each.mutants) or 'none'}"
        code = ", ".join(each.code) or "no code"
        click.echo(f"{each.id:5} {each.status:10} {each.text} | {code} | {proof}{used}{lacking}")
        _list_tests(each.tests, show_tests)
    for behaviour in all_behaviours():
        proof = "" if behaviour.unlike else f" | {_tests(len(behaviour.tests))}"
        click.echo(f"{behaviour.id} {behaviour.status}: {behaviour.text}{proof}")
        _list_tests(behaviour.tests, show_tests)
    faults = [each.fault for each in found if each.fault]
    for fault in faults:
        click.echo(f"crucible: {fault}", err=True)
    sys.exit(1 if faults else 0)


def _tests(count: int) -> str:
    return f"{count} test{'s' * (count != 1)}"


def _list_tests(tests: tuple[str, ...], shown: bool) -> None:
    for test in tests if shown else ():
        click.echo(f"        {test}")
