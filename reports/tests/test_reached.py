"""The section of the index that shows what nights reached in the simulator, drawn from folders of nights."""

from pathlib import Path

from reports.index.nights import Collected, reached_points, summarize_nights
from reports.index.write import FOLDER, context_of
from reports.night import Canary, CorpusGrowth, Night, PointCounts, night_folders, read_night, write_night
from reports.page.render import environment

NEVER = ("session-epoch=another", "marker-epoch=older or late, refused")
CANARY = Canary(mutant="no_abort", scenario="14-x", seeds_tried=3, found=True, guarantee="torn", spent_us=12_340_000)
GROWTH = CorpusGrowth(schedules=1_900, entries_before=70, entries=81, outcomes_before=600, outcomes=613)


def _plant(nights: Path, day: int, **values: object) -> None:
    name = f"202601{day:02d}-000000"
    night = Night(night=name, started_us=day * 86_400_000_000, budget_s=60.0, seed=1, finished=True, **values)  # type: ignore[arg-type]
    write_night(nights / name, night)


def _page(nights: Path) -> str:
    every = summarize_nights([read_night(folder) for folder in night_folders(nights)], [], 0)
    context = context_of(Collected([], [], [], [], []), every, (), nights, nights)
    page = environment(FOLDER).get_template("index.html.j2").render(context)
    return page[page.index('id="reached"') : page.index("<footer>")]


def test_page_shows_unreached_points_corpus_growth_and_canary(
    tmp_path: Path,
) -> None:
    _plant(tmp_path, 1, canary=Canary(mutant="two_leaders", scenario="07-y", seeds_tried=40))
    _plant(tmp_path, 2, points=PointCounts(outcomes=1_000, reached=950, never=NEVER), canary=CANARY, corpus=GROWTH)
    page = _page(tmp_path)
    assert "950 of 1,000 outcomes were reached in the night 20260102-000000" in page
    assert "2 were not, and 48 cannot be" in page
    assert all(f"<code>{each}</code>" in page for each in NEVER)
    newest, oldest = page.index("no_abort"), page.index("two_leaders")
    assert newest < oldest
    cells = ["torn", "3", "12.3", "1,900", "81", "11", "613", "13"]
    found = page[newest:oldest]
    places = [found.index(f">{cell}</td>") for cell in cells]
    assert places == sorted(places)
    assert "it lives" in page[oldest:]


def test_night_without_any_of_it_has_an_empty_section(tmp_path: Path) -> None:
    _plant(tmp_path, 1)
    page = _page(tmp_path)
    assert "No night counted decision points." in page
    assert "<table" not in page


def test_previous_night_is_compared_if_points_are_equal(tmp_path: Path) -> None:
    _plant(tmp_path, 1, points=PointCounts(outcomes=10, reached=8, never=("a=b", "c=d")))
    _plant(tmp_path, 2)
    _plant(tmp_path, 3, points=PointCounts(outcomes=10, reached=8, never=("c=d", "e=f")))
    nights = [read_night(folder) for folder in night_folders(tmp_path)]
    points = reached_points(summarize_nights(nights, [], 0))
    assert points is not None
    assert (points.newly, points.lost, points.excused) == (("a=b",), ("e=f",), 0)
    page = _page(tmp_path)
    assert "1 newly reached</span> since the night before: <code>a=b</code>" in page
    assert "1 no longer reached</span> since the night before: <code>e=f</code>" in page
    _plant(tmp_path, 4, points=PointCounts(outcomes=12, reached=11, never=("g=h",)))
    nights = [read_night(folder) for folder in night_folders(tmp_path)]
    points = reached_points(summarize_nights(nights, [], 0))
    assert points is not None
    assert (points.newly, points.lost) == ((), ())
