"""The models and the bandit of the search: what they learn from a little, and that they repeat."""

import math

import numpy as np
import pytest

from tedsl.autotune.search import blas_threads, boosted_trees
from tedsl.autotune.search.bandit import Bandit
from tedsl.autotune.search.candidate_table import PREDICTED, Table
from tedsl.autotune.search.encoding import encode_knobs
from tedsl.autotune.search.gaussian_process import Posterior, Scales, filled, fit_scales
from tedsl.autotune.search_space.space import Knob


def test_the_process_learns_which_column_matters():
    rng = np.random.default_rng(0)
    columns = rng.random((60, 4))
    values = 3.0 * np.sin(4.0 * columns[:, 0]) + columns[:, 1]
    scales = fit_scales(columns, values, Scales.start(4))
    assert scales.logs[0] > max(scales.logs[2:4])
    fresh = rng.random((200, 4))
    belief = Posterior(columns, values, scales).over(fresh)
    truth = 3.0 * np.sin(4.0 * fresh[:, 0]) + fresh[:, 1]
    assert float(np.sqrt(np.mean((belief.mean - truth) ** 2))) < 0.2
    assert (belief.gain(float(values.min())) >= 0).all()


def test_what_is_under_way_is_not_proposed_again():
    columns = np.linspace(0, 1, 41)[:, None]
    seen = np.array([0, 20, 40])
    values = np.array([1.0, 0.0, 1.0])
    belief = Posterior(columns[seen], values, Scales.start(1)).over(columns)
    before = belief.left.copy()
    belief.expect(10)
    assert belief.left[10] < 0.05 * before[10]
    assert (belief.left <= before + 1e-12).all()
    assert belief.left[30] > 0.5 * before[30]


def test_columns_that_come_later_start_at_the_prior():
    scales = fit_scales(np.random.default_rng(1).random((20, 2)), np.arange(20.0), Scales.start(2))
    wider = scales.widened(4)
    assert len(wider.logs) == 5
    assert wider.logs[-1] == scales.logs[-1]
    assert list(wider.logs[2:4]) == [0.0, 0.0]
    assert np.isfinite(filled(np.array([[np.nan, 1.0]]))).all()


@pytest.mark.skipif(not boosted_trees.installed(), reason="LightGBM is not installed")
def test_trees_repeat_and_order():
    rng = np.random.default_rng(0)
    columns = rng.random((120, 5))
    values = np.where(columns[:, 0] > 0.5, 2.0, 0.0) + columns[:, 1]
    one, two = (boosted_trees.regress(columns, values, columns) for _ in range(2))
    assert (one == two).all()
    assert np.corrcoef(one, values)[0, 1] > 0.9
    chance = boosted_trees.classify(columns, (values < 0.3).astype(float), columns)
    assert chance[values < 0.3].min() > chance[values > 1.0].max()


def test_the_bandit_keeps_shares_until_something_is_won():
    bandit = Bandit([("a", 0.6), ("b", 0.3), ("c", 0.1)])
    for _ in range(200):
        arm = bandit.choose(frozenset())
        assert arm is not None
        arm.waiting += 1
        bandit.grade(arm.name, 0.0)
    uses = {name: arm.uses for name, arm in bandit.arms.items()}
    assert uses == pytest.approx({"a": 120, "b": 60, "c": 20}, abs=3)
    for _ in range(100):
        arm = bandit.choose(frozenset())
        assert arm is not None
        arm.waiting += 1
        bandit.grade(arm.name, 1.0 if arm.name == "c" else 0.0)
    assert bandit.arms["c"].uses > 90
    assert bandit.choose(frozenset({"a", "b", "c"})) is None


def test_knobs_as_numbers():
    knobs = [
        Knob("size", (16, 32, 64), 32),
        Knob("odd", (16, 48, 96, 128), 96),
        Knob("flag", (False, True), True),
        Knob("order", ("ij", "ji"), "ji"),
        Knob("tile", ((8, 128), (64, 16)), (64, 16)),
        Knob("zero", (0, 1, 2), 2),
    ]
    assert encode_knobs(knobs) == {
        "size": 5.0,
        "odd": pytest.approx(math.log2(96)),
        "odd:twos": 5.0,
        "flag": 1.0,
        "order": 1.0,
        "tile[0]": 6.0,
        "tile[1]": 4.0,
        "zero": 2.0,
    }


def test_a_table_scales_and_grows():
    table = Table()
    table.add([{"x": 1.0}], [{"bytes": 1024.0, PREDICTED: 1e-3}])
    table.add([{"x": 3.0, "y": 2.0}, {"y": 4.0}], [{"bytes": 1.0e6}, None])
    scaled = table.scaled()
    assert scaled.shape == (3, 4)
    np.testing.assert_allclose(scaled[:, 0], [0.0, 1.0, np.nan])
    np.testing.assert_allclose(table.predicted(), [math.log(1e-3), np.nan, np.nan])


def test_one_thread_is_given_back():
    found = blas_threads._controls()
    before = [get() for get, _ in found]
    for _, put in found:
        put(2)
    with blas_threads.one_thread():
        assert all(get() == 1 for get, _ in found)
    assert all(get() == 2 for get, _ in found)
    for count, (_, put) in zip(before, found, strict=True):
        put(count)
