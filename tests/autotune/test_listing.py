"""`te.space`: sizes, choices, defaults and what they depend on, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rule_cases as c
from rule_shapes import SHAPES

import tedsl as te


def test_a_small_space_is_counted() -> None:
    listing = te.space(c.chain(64, 64), "cpu")
    assert (listing.size.count, listing.size.error) == (2, 0)
    assert "every combination was made" in str(listing)


def test_a_large_space_is_estimated_and_printed() -> None:
    listing = te.space(SHAPES["contraction_with_epilogue"](), "cuda", samples=8)
    assert listing.size.count > 20000 and listing.size.error > 0
    assert listing.refused == 0 and listing.distinct == 8
    text = str(listing)
    assert "estimated from 8 random walks" in text
    assert "cast.bm: number of 16 32 64 128 256; default 128" in text
    assert "cast.flatten: yes/no of True False; default True; depends on cast.resident" in text


def test_knobs_that_the_default_does_not_meet() -> None:
    listing = te.space(c.softmax(4096, 8192), "cuda", samples=24)
    assert listing.size.count > 1500
    knobs = {knob.name: knob for knob in listing.knobs}
    assert not knobs["softmax.online"].met
    assert "softmax.whole_row" in knobs["softmax.online"].depends
    assert "not met by default" in str(knobs["softmax.online"])


def test_json() -> None:
    def function(s: te.Schedule) -> None:
        stage = s["sigmoid"]
        outer, inner = stage.split(stage.op.axis[0], factor=te.auto)
        stage.reorder(outer, inner, te.auto)
        stage.parallel(outer) if s.knob("threads", (True, False)) else None

    listing = te.space(c.chain(8, 8), "cpu", schedule=function)
    data = json.loads(listing.to_json())
    assert data["target"] == "cpu" and data["size"]["error"] == 0
    assert [(knob["name"], knob["kind"]) for knob in data["knobs"]] == [
        ("sigmoid.split.i0.factor", "number"),
        ("sigmoid.reorder", "order"),
        ("threads", "yes/no"),
    ]


@pytest.mark.parametrize("samples", [0, -1, 2**70, 1.5, "8", None])
def test_a_number_of_samples_that_never_ends_is_refused(samples: Any) -> None:
    with pytest.raises(te.TedslError, match=r"samples is .*(.|\n)*at least 1 and at most 100000"):
        te.space(c.softmax(4, 8), "cpu", samples=samples)
