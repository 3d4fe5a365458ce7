"""Cards: what a notebook shows at the end of a cell."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from pathlib import Path

import pytest
from viewed import HOSTILE, fused_product, hostile, many_stages

import tedsl as te


class Checker(HTMLParser):
    """Collects the text, and checks that elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_the_card_of_a_tensor_is_its_definition_and_what_it_is_made_of() -> None:
    d = fused_product().outputs[0]
    card = Checker(d._repr_html_())
    assert card.text.startswith("D float32[64, 64]")
    assert "made of 1 stage" in card.text
    assert "sum" in card.text
    assert "A: float32[64, 64]" in card.text
    assert Checker(d.op._repr_html_()).text == card.text


def test_the_card_of_a_large_computation_leaves_some_out() -> None:
    card = Checker(many_stages(6)._repr_html_())
    assert "before them" in card.text


def test_the_card_of_a_schedule_is_its_loop_nest_and_its_python() -> None:
    s = fused_product()
    card = Checker(s._repr_html_())
    assert str(s) in card.text
    assert s.as_python() in card.text
    assert "5 stages, 9 steps" in card.text


@pytest.mark.cpu
def test_the_card_of_a_kernel_is_its_signature_loops_and_code() -> None:
    kernel = te.build(fused_product(), "cpu")
    card = Checker(kernel._repr_html_())
    for text in (str(kernel.signature), str(kernel.schedule), kernel.ir, kernel.source):
        assert text in card.text
    assert "instructions" in card.text
    assert "script" not in card.tags


@pytest.mark.cpu
def test_the_card_of_a_kernel_that_was_searched_for_has_the_report() -> None:
    made = fused_product().outputs[0]
    kernel = te.autotune(made, "cpu", budget="none", records=False, progress=False)
    assert str(kernel.tuning.report) in Checker(kernel._repr_html_()).text


def test_the_cards_of_a_stage_and_a_space() -> None:
    s = fused_product()
    d = s.outputs[0]
    card = Checker(s[d]._repr_html_()).text
    assert card.startswith("stage D [") and "D[i, j] = " in card
    printed = te.space(d, "cpu", samples=2)
    assert Checker(printed._repr_html_()).text == str(printed)


def test_names_of_the_user_are_escaped() -> None:
    s = hostile()
    for thing in (s, s.outputs[0]):
        card = Checker(thing._repr_html_())
        assert not card.tags & {"script", "b2"}
        assert HOSTILE in card.text


def test_a_view_is_a_frame_with_the_page_in_it(tmp_path: Path) -> None:
    view = hostile().view(tmp_path / "page.html", target="cpu")
    frame = view._repr_html_()
    assert Checker(f"{frame}").tags == {"iframe"}
    page = view.path.read_text(encoding="utf-8")
    assert f'srcdoc="{html.escape(page)}"' in frame
    assert str(view) == str(tmp_path / "page.html")
