"""Sizes that a search is for: lists, weights, ranges, and the order in which they are tried."""

import math

import pytest

import tedsl as te
from tedsl.autotune.frontend.sizes import are_many, one_size, spread, weighted
from tedsl.errors import TuneError


def test_one_size_and_many():
    n = te.size_var("n")
    assert not are_many({"n": 4})
    assert not are_many({})
    assert are_many([{"n": 4}])
    assert are_many({"n": te.sizes.uniform(1, 8)})
    assert one_size({n: 7}) == {"n": 7}
    with pytest.raises(TuneError, match="several sizes were given"):
        one_size([{"n": 1}])


def test_weights_add_up_to_one():
    n = te.size_var("n")
    assert weighted([{"n": 1}, ({n: 2}, 3.0)]) == [({"n": 1}, 0.25), ({"n": 2}, 0.75)]


def test_ranges_are_drawn_evenly():
    drawn = te.sizes.draw({"n": te.sizes.log_uniform(1, 4096), "m": 5}, 13)
    assert [size["n"] for size in drawn] == [2**n for n in range(13)]
    assert all(size["m"] == 5 for size in drawn)
    flat = te.sizes.draw({"n": te.sizes.uniform(64, 1000, multiple=64)}, 100)
    assert [size["n"] for size in flat] == sorted({64 * n for n in range(1, 16)})[: len(flat)]
    two = {"m": te.sizes.log_uniform(1, 1024), "n": te.sizes.log_uniform(16, 4096, multiple=16)}
    found = te.sizes.draw(two, 12)
    assert found == te.sizes.draw(two, 12)
    assert len(found) == 12
    assert all(1 <= s["m"] <= 1024 and 16 <= s["n"] <= 4096 and s["n"] % 16 == 0 for s in found)
    halves = [sum(math.log2(s["n"]) > 8 for s in found), sum(s["m"] > 32 for s in found)]
    assert all(4 <= count <= 8 for count in halves)
    assert len(weighted(two)) == 8


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([], "names no size"),
        ([{"n": 1}, {"m": 1}], "has other names"),
        ([{"n": 1}, {"n": 1}], "is given twice"),
        ([({"n": 1}, 0.0)], "has the weight 0.0"),
    ],
)
def test_what_is_no_list_of_sizes_is_refused(sizes: list, text: str):
    with pytest.raises(TuneError, match=text):
        weighted(sizes)


def test_an_empty_range_is_refused():
    with pytest.raises(TuneError, match="no size between 5 and 7"):
        te.sizes.uniform(5, 7, multiple=4)
    with pytest.raises(TuneError, match="no size between 0 and 7"):
        te.sizes.uniform(0, 7)
    with pytest.raises(TuneError, match="count=0 sizes are none"):
        te.sizes.draw({"n": te.sizes.uniform(1, 7)}, 0)
    with pytest.raises(TuneError, match="11 ranges are too many"):
        te.sizes.draw({f"n{k}": te.sizes.uniform(1, 7) for k in range(11)})


def test_the_order_begins_in_the_middle_and_goes_far():
    sizes = [{"n": 2**k} for k in range(9)]
    order = spread(sizes)
    assert sorted(order) == list(range(9))
    assert order[0] == 4
    assert {order[1], order[2]} == {0, 8}
