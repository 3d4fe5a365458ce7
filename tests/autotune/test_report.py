"""What the user reads after a search."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_problems import chain, pieces
from toy_spaces import judge, tiles, toy

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.report.ablation import unpaired, worth_of
from tedsl.autotune.report.bottleneck import limits_of
from tedsl.autotune.report.report import failures, reasons, summary
from tedsl.autotune.search.portfolio import Search
from tedsl.autotune.search_space.space import Candidate, Knob
from tedsl.cost.estimate import Estimate
from tedsl.cost.roofline import Roofline
from tedsl.devices import H200
from tedsl.errors import TuneError


def searched(trials: int = 60) -> Search:
    search = Search(toy(tiles), trials=trials, seed=1)
    while batch := search.ask():
        search.tell(batch, [judge(candidate) for candidate in batch.candidates])
    return search


def trial(number: int, seconds: float, noise: float = 0.0, **decisions: int | str) -> Trial:
    choices = {"stages": (2, 3, 4), "warps": (4, 8), "fuse": ("no", "yes"), "at": (0, 1)}
    knobs = tuple(Knob(name, choices[name], value) for name, value in decisions.items())
    samples = tuple(seconds * (1 + noise * place) for place in (-2, -1, 0, 1, 2, 0, 1, -1))
    return Trial(number, Candidate(knobs), Outcome(Status.OK, seconds, samples))


def test_summary_table():
    search = searched()
    assert search.best is not None
    text = summary(search, search.best, str, 1.5)
    lines = text.splitlines()
    assert lines[1].startswith("*")
    assert any("(default)" in line for line in lines)
    assert "60 candidates in 1.5 s" in text
    assert any("illegal: vectorize: tile of more" in line for line in lines)


def test_reasons_are_counted_most_frequent_first():
    search = searched()
    counts = [int(line.split()[0]) for line in reasons(search)]
    assert counts == sorted(counts, reverse=True)
    bad = failures((t.outcome for t in search.done), len(search.rejected))
    assert sum(counts) == sum(bad.values())


def test_a_decision_is_worth_what_its_neighbours_cost():
    trials = [
        trial(0, 1.00, stages=3, warps=4),
        trial(1, 1.06, stages=4, warps=4),
        trial(2, 2.12, stages=4, warps=8),
        trial(3, 2.00, stages=3, warps=8),
    ]
    worth = worth_of(trials, trials[0].candidate)
    assert list(worth) == ["warps", "stages"]
    (stages,) = worth["stages"]
    assert (stages.chosen, stages.other, stages.pairs) == (3, 4, 2)
    assert stages.ratio.middle == pytest.approx(1.06)
    assert str(stages) == "+6.0 % (+6.0 to +6.0), 2 pairs"
    assert worth["warps"][0].ratio.middle == pytest.approx(2.0)


def test_the_interval_of_one_pair_is_that_of_its_samples():
    trials = [trial(0, 1.0, 0.01, stages=3), trial(1, 1.06, 0.01, stages=4)]
    (row,) = worth_of(trials, trials[0].candidate)["stages"]
    assert 1.03 < row.ratio.low < 1.06 < row.ratio.high < 1.09
    few = [replace(t, outcome=replace(t.outcome, samples=(t.seconds,))) for t in trials]
    (row,) = worth_of(few, few[0].candidate)["stages"]
    assert str(row) == "+6.0 % (unclear), 1 pair"


def test_the_interval_of_several_pairs_is_their_spread():
    trials = [trial(2 * n, 1.0 + 0.1 * n, stages=3, warps=4, at=n) for n in range(3)]
    trials += [trial(2 * n + 1, 1.06 + 0.11 * n, stages=4, warps=4, at=n) for n in range(3)]
    (row,) = worth_of(trials, trials[0].candidate)["stages"]
    assert row.pairs == 3
    assert 1.05 < row.ratio.low < row.ratio.middle < row.ratio.high < 1.08


def test_a_knob_below_the_changed_one_is_no_second_change():
    trials = [trial(0, 1.0, fuse="yes", at=1), trial(1, 1.3, fuse="no")]
    worth = worth_of(trials, trials[0].candidate)
    assert worth["fuse"][0].ratio.middle == pytest.approx(1.3)
    assert worth["at"] == []


def test_failed_trials_are_worth_nothing():
    bad = replace(trial(1, 1.0, stages=4), outcome=Outcome(Status.WRONG))
    assert worth_of([trial(0, 1.0, stages=3), bad], trial(0, 1.0, stages=3).candidate) == {
        "stages": []
    }


def test_times_not_taken_in_turn():
    ratio = unpaired([1.1 + 0.01 * n for n in range(12)], [1.0 + 0.01 * n for n in range(12)])
    assert 1.03 < ratio.low < 1.09 < ratio.middle < 1.1 < ratio.high < 1.17


@pytest.mark.parametrize(
    ("seconds", "found", "resources", "binding"),
    [
        (25e-6, Estimate(2e-5, bytes=1e8), {}, "device memory: 83 % of its peak"),
        (
            2e-4,
            Estimate(2e-5, bytes=1e8, features={"programs": 14.0}),
            {"registers": 255.0, "num_warps": 4.0, "shared": 0.0, "stack": 64.0},
            "registers: some are spilled",
        ),
        (
            2e-4,
            Estimate(2e-5, bytes=1e8, features={"programs": 14.0}),
            {"registers": 64.0, "num_warps": 4.0, "shared": 200.0 * 1024},
            "shared memory: only 4 warps on a processor hide latency",
        ),
        (
            2e-4,
            Estimate(2e-5, bytes=1e8, features={"programs": 5.0}),
            {"registers": 32.0, "num_warps": 4.0},
            "waves: the device is not full",
        ),
        (
            2e-4,
            Estimate(2e-5, bytes=1e8, features={"programs": 14.0}),
            {"registers": 32.0, "num_warps": 4.0},
            "no unit is near its peak (device memory is nearest): latency, or overhead",
        ),
    ],
)
def test_the_limit_that_binds_a_gpu_kernel(
    seconds: float, found: Estimate, resources: dict[str, float], binding: str
):
    roof = Roofline(1e8, 1e6, H200.bandwidth, 6.7e13, 1e8 / H200.bandwidth, 1e6 / 6.7e13)
    limits = limits_of(seconds, found, H200, roof, resources)
    assert limits.binding == binding
    assert dict(limits.rows)["device memory"].endswith("of 4,800 GB/s, 100 MB moved")


@pytest.fixture(scope="module")
def found() -> TuneResult:
    return tune(chain(), "cpu", records=False, schedule=pieces(8, 64, 512, 5), fresh=True)


@pytest.mark.cpu
def test_the_report_of_a_search(found: TuneResult):
    text = str(found.report)
    titles = [title for title, _ in found.report.sections]
    assert titles[0] == "result"
    assert "where the time went" in titles
    for part in (
        "% of the roofline: at least",
        "4 candidates: everything legal was tried",
        "s = te.create_schedule(y)",
        's["y"].vectorize(',
        "  piece = ",
        "of their time",
    ):
        assert part in text
    html = found._repr_html_()
    assert html.count("<details") == len(titles)
    assert "&quot;y&quot;" in html
    assert len(html) < 8000


@pytest.mark.cpu
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_plot_of_a_search(found: TuneResult, suffix: str, tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = found.plot(tmp_path / "deep" / f"search{suffix}")
    head = path.read_bytes()[:200]
    assert (b"<?xml" in head) if suffix == ".svg" else head.startswith(b"\x89PNG")


@pytest.mark.cpu
def test_what_cannot_be_plotted(found: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TuneError, match=r"allowed.*\.svg, \.png"):
        found.plot(tmp_path / "a.txt")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: name)
        with pytest.raises(TuneError, match="nothing was measured"):
            replace(found, searched=()).plot(tmp_path / "a.svg")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TuneError, match="matplotlib, which is not installed"):
        found.plot(tmp_path / "a.svg")


@pytest.mark.cpu
def test_the_report_of_what_was_not_measured():
    x = te.placeholder((64, 64), "float32", name="x")
    text = str(tune(te.nn.softmax(x), "cpu", budget="none", records=False).report)
    assert "chosen without a measurement" in text
    assert "schedule" in text
