"""What a scenario promises, held against the guarantees that there are (``reports/guarantees.py``).

The scenarios' own room knows no guarantees: it reads their names, as it reads those of mutants and presets.
"""

from reports.guarantees import GUARANTEES, SeenFrom, names_seen_from, unknown_among
from scenarios.fields import ScenarioError
from scenarios.model import Scenario


def checked(scenario: Scenario) -> Scenario:
    """The scenario itself. Raises ScenarioError for a guarantee that there is not."""
    for name in unknown_among(scenario.guarantees):
        raise ScenarioError(f"{scenario.path}: guarantees has {name!r}; allowed: {', '.join(GUARANTEES)}")
    return scenario


def promised_to_clients(scenario: Scenario) -> tuple[str, ...]:
    """Those of its guarantees that clients can judge alone. Where the scenario names none, all that there is evidence
    for are judged anyway."""
    seen = names_seen_from(SeenFrom.CLIENTS)
    return tuple(each for each in scenario.guarantees if each in seen)
