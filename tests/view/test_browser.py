"""The page in a real browser: pointing, clicking, the slider, search, keys, light and dark.

`pytest tests/view --basetemp=FOLDER` leaves the screenshots in FOLDER to be looked at.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from browser import MISSING, Browser, Tab, browser_path, open_browser
from viewed import HOSTILE, fused_product, hostile, many_stages

import tedsl as te

pytestmark = pytest.mark.skipif(browser_path() is None, reason=MISSING)

LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 24, 31)"
PAPER = "getComputedStyle(document.body).backgroundColor"
OVERLAPS = """
(() => {
  const boxes = [...document.querySelectorAll("SELECTOR")].map((e) => e.getBoundingClientRect());
  let found = 0;
  boxes.forEach((a, n) => boxes.slice(n + 1).forEach((b) => {
    const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
    if (!apart) found += 1;
  }));
  return [boxes.length, found];
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a matrix product that was built for a GPU."""
    path = tmp_path_factory.mktemp("pages") / "product.html"
    return te.build(fused_product(), "cuda:sm_90").view(path).path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of more than 40 stages, fused by the default rules."""
    path = tmp_path_factory.mktemp("pages") / "large.html"
    kernel = te.build(many_stages(), "triton-interpret")
    assert len(kernel.schedule.stages) >= 40
    return kernel.view(path).path


@pytest.fixture
def tab(browser: Browser, product: Path) -> Generator[Tab]:
    """The product's page, on which nothing may go wrong and which may load nothing."""
    opened = browser.open(product)
    yield opened
    assert opened.faults() == []
    assert [url.partition("#")[0] for url in opened.requests()] == [product.as_uri()]
    opened.close()


def chosen(tab: Tab) -> str:
    """The name on the card of the chosen stage, or nothing."""
    return "".join(tab.texts("#card .head b"))


def background(tab: Tab, selector: str) -> str:
    return str(tab.run(f"getComputedStyle(document.querySelector({selector!r})).backgroundColor"))


def stage(tab: Tab, name: str) -> int:
    """The number of a stage."""
    return int(tab.run(f"Store.page.stages.findIndex((stage) => stage.name === {name!r})"))


def test_the_page_begins_with_the_whole_schedule(tab: Tab, tmp_path: Path) -> None:
    assert tab.text("#title") == "D"
    assert tab.text("#subject") == "kernel for cuda:sm_90"
    assert tab.texts(".tab") == [
        "Schedule",
        "Loop IR",
        "Triton",
        "PTX",
        "Fusion",
        "Loop order",
        "Roofline",
    ]
    assert tab.text(".position") == "step 9 of 9"
    assert tab.texts(".node .name") == ["A", "B", "C", "bias", "D"]
    assert len(tab.texts(".cluster-title")) == 1
    tab.screenshot(tmp_path / "light.png")


def test_the_slider_moves_through_the_steps(tab: Tab) -> None:
    tab.run(
        "(() => { const s = document.querySelector('.slider'); s.value = 0;"
        "s.dispatchEvent(new Event('input')); })()"
    )
    assert tab.text(".position") == "step 0 of 9"
    assert tab.texts(".cluster-title") == ["kernel C", "kernel D"]
    assert "kernel C: float32[64, 64]" in "\n".join(tab.texts(".nest .content"))
    x, y = tab.middle(".slider")
    tab.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    tab.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left")
    tab.until("State.now.step === 4 || State.now.step === 5")


def test_each_step_shows_its_line_and_what_it_changed(tab: Tab) -> None:
    tab.click('.step[data-step="6"] button')
    assert tab.texts(".step.here .content") == ['s["C"].compute_at(s["D"], i_outer_j_outer_fused)']
    assert tab.texts(".step.here .site")[0].startswith("viewed.py:")
    assert any("kernel C" in text for text in tab.texts(".nest .line.gone .content"))
    assert any("C: float32[16, 16], local" in text for text in tab.texts(".nest .line.new"))
    assert tab.texts(".cluster-title") == ["kernel D"]


def test_arrows_and_home_and_end_step(tab: Tab) -> None:
    for key, expected in (("ArrowLeft", 8), ("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1)):
        tab.key(key)
        assert tab.run("State.now.step") == expected
    tab.key("End")
    assert tab.text(".position") == "step 9 of 9"


def test_pointing_at_a_stage_marks_it_everywhere(tab: Tab) -> None:
    c = stage(tab, "C")
    word, box = f'.nest .stage[data-s="{c}"]', f'.node[data-s="{c}"] .box'
    plain = (
        background(tab, word),
        tab.run(f"getComputedStyle(document.querySelector('{box}')).fill"),
    )
    tab.point(f'.node[data-s="{c}"]')
    marked = (
        background(tab, word),
        tab.run(f"getComputedStyle(document.querySelector('{box}')).fill"),
    )
    assert plain[0] != marked[0]
    assert plain[1] != marked[1]
    assert "sum(k)" in tab.text("#status")
    tab.point("#title")
    assert background(tab, word) == plain[0]
    tab.point(word)
    assert tab.run(f"getComputedStyle(document.querySelector('{box}')).fill") == marked[1]


def test_pointing_at_an_instruction_marks_the_stage_that_it_computes(tab: Tab) -> None:
    c = stage(tab, "C")
    tab.key("4")
    box = f"getComputedStyle(document.querySelector('.node[data-s=\"{c}\"] .box')).fill"
    plain = tab.run(box)
    tab.point(f'#pane-code1 .line[data-w="{c}"] .content')
    assert tab.run(box) != plain
    assert "sum(k)" in tab.text("#status")


def test_a_click_keeps_a_stage_and_counts_it_in_every_tab(tab: Tab) -> None:
    c = stage(tab, "C")
    tab.click(f'.node[data-s="{c}"]')
    assert chosen(tab) == "C"
    assert tab.texts("#card .link.stage") == ["A", "B", "D"]
    counts = tab.texts(".tab .badge")
    assert all(int(count) > 0 for count in counts[:4])
    tab.click("#tab-code1")
    tab.until("document.querySelectorAll('#pane-code1 .line').length > 50")
    lines = tab.run(f"document.querySelectorAll('#pane-code1 .line[data-w~=\"{c}\"]').length")
    assert lines == int(counts[3]), "instructions of the stage"
    tab.click("#card .link.stage")
    assert chosen(tab) == "A"
    tab.key("Escape")
    assert chosen(tab) == ""
    tab.click("#tab-code0")
    tab.click(f'#pane-code0 .stage[data-s="{c}"]')
    assert chosen(tab) == "C"


def test_n_goes_through_the_lines_of_the_chosen_stage(tab: Tab) -> None:
    tab.key("n")
    assert tab.run("document.querySelectorAll('.line.at').length") == 0
    tab.click(f'.node[data-s="{stage(tab, "C")}"]')
    tab.key("3")
    seen: list[str] = []
    for key in ("n", "n", "n", "N"):
        tab.key(key)
        seen += tab.texts("#pane-code0 .line.at .number + .sign + .content")
    assert len(seen) == 4
    assert len(set(seen)) == 3
    assert seen[3] == seen[1]


def test_each_pass_shows_what_it_changed(tab: Tab, tmp_path: Path) -> None:
    tab.key("2")
    assert "fill_padding" in tab.texts(".pass.here")[0]
    tab.key("Home")
    assert "build_nests" in tab.texts(".pass.here")[0]
    names = list(tab.run("Store.page.passes.map((each) => each.name)"))
    tab.click(f'.pass[data-pass="{names.index("vectorize_loops")}"] button')
    assert tab.text(".what").startswith("Make each vectorized loop a dimension of the tile")
    assert any("tile (" in text for text in tab.texts("#pane-ir .line.new .content"))
    everything = len(tab.texts("#pane-ir .column .line"))
    tab.key("c")
    assert tab.texts("#pane-ir .folded")
    assert len(tab.texts("#pane-ir .column .line")) < everything
    tab.screenshot(tmp_path / "passes.png")
    tab.key("c")
    assert len(tab.texts("#pane-ir .column .line")) == everything
    tab.key("ArrowRight")
    assert "simplify_tiles" in tab.texts(".pass.here")[0]


def test_search_finds_everywhere_and_goes_there(tab: Tab, tmp_path: Path) -> None:
    tab.key("/")
    assert tab.run("document.activeElement.id") == "search"
    tab.write("tl.dot")
    assert tab.texts("#results .group") == ["Triton: 1"]
    tab.key("Enter")
    assert tab.run("State.now.tab") == "code0"
    assert "tl.dot" in tab.texts(".line.at .content")[0]
    tab.key("/")
    tab.write("float32")
    groups = [text.partition(":")[0] for text in tab.texts("#results .group")]
    assert groups[:3] == ["stages", "loop nest", "loop IR after fill_padding"]
    tab.screenshot(tmp_path / "search.png")
    tab.key("ArrowDown")
    tab.key("ArrowDown")
    tab.key("Enter")
    assert chosen(tab) == "B", "the second stage"
    tab.key("/")
    tab.write("no such thing")
    assert tab.texts("#results") == ["nothing found"]
    tab.key("Escape")
    assert tab.texts("#results") == []


def test_light_and_dark(tab: Tab, tmp_path: Path) -> None:
    tab.prefer("dark")
    assert tab.run(PAPER) == DARK, "as the system says"
    tab.prefer("light")
    assert tab.run(PAPER) == LIGHT
    tab.key("t")
    assert tab.run(PAPER) == DARK, "as the user says"
    tab.screenshot(tmp_path / "dark.png")
    tab.click("#theme")
    assert tab.run(PAPER) == LIGHT
    tab.prefer("dark")
    assert tab.run(PAPER) == LIGHT


def test_the_graph_moves_and_zooms_and_comes_back(tab: Tab) -> None:
    where = "document.querySelector('.world').getAttribute('transform')"
    start = tab.run(where)
    tab.wheel("svg.graph", -200)
    tab.until(f"{where} !== '{start}'")
    zoomed = tab.run(where)
    assert zoomed.partition("scale")[2] != start.partition("scale")[2]
    left, top = tab.middle("svg.graph")
    tab.drag((left, 100), (left + 60, top))
    assert tab.run(where).partition("scale")[2] == zoomed.partition("scale")[2]
    assert tab.run(where) != zoomed
    assert chosen(tab) == "", "dragging chooses nothing"
    tab.key("f")
    assert tab.run(where).partition("scale")[2] == start.partition("scale")[2]


def test_help_and_keyboard_focus(tab: Tab) -> None:
    tab.key("?")
    assert tab.run("document.getElementById('help').open")
    tab.key("Escape")
    tab.until("!document.getElementById('help').open")
    tab.run(f"document.querySelector('.node[data-s=\"{stage(tab, 'bias')}\"]').focus()")
    tab.key("Enter")
    assert chosen(tab) == "bias"


def test_figures_of_the_kernel_stand_above_its_code(tab: Tab) -> None:
    tab.click("#tab-code1")
    head, row = tab.texts("#pane-code1 th"), tab.texts("#pane-code1 td")
    figures = dict(zip(head, row, strict=True))
    assert figures["arch"] == "sm_90"
    assert int(figures["registers"]) > 0


def test_a_link_brings_back_what_was_looked_at(browser: Browser, product: Path) -> None:
    tab = browser.open(product, "#tab=ir&pass=4&stage=C&step=2&only=1&theme=dark")
    assert tab.run("State.now.tab") == "ir"
    assert tab.texts(".pass.here")[0].startswith("shorten_loops")
    assert chosen(tab) == "C"
    assert tab.run(PAPER) == DARK
    tab.key("1")
    assert tab.text(".position") == "step 2 of 9"
    assert "tab=schedule" in tab.run("location.hash")
    tab.run("location.hash = '#step=4'")
    tab.until("State.now.step === 4")
    for wrong in ("#step=999&pass=x&stage=nobody&tab=none", "#%ff"):
        other = browser.open(product, wrong)
        assert other.faults() == []
        other.close()
    tab.close()


@pytest.mark.uncompiled("what the default rules make is compiled by their own tests")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forty_stages_have_room(browser: Browser, large: Path, tmp_path: Path, scheme: str) -> None:
    tab = browser.open(large, f"#theme={scheme}")
    for step in (0, 5, 1000):
        tab.run(f"State.set({{ step: {step} }})")
        nodes, overlaps = tab.run(OVERLAPS.replace("SELECTOR", ".node .box"))
        assert nodes >= 40
        assert overlaps == 0, "nodes lie beside each other"
        assert tab.run(OVERLAPS.replace("SELECTOR", ".cluster"))[1] == 0, "kernels too"
        tab.screenshot(tmp_path / f"step{step}.png")
    tab.key("f")
    tab.screenshot(tmp_path / "whole.png")
    box = tab.run(
        "(() => { const b = document.querySelector('.world').getBoundingClientRect();"
        "const r = document.querySelector('svg.graph').getBoundingClientRect();"
        "return b.left >= r.left && b.right <= r.right && b.top >= r.top && b.bottom <= r.bottom;"
        "})()"
    )
    assert box, "all of it is in sight"
    tab.key("Home")
    seconds = tab.run(
        "(() => { const t = performance.now();"
        "for (let n = 0; n < 40; n += 1) State.set({ step: n });"
        "return (performance.now() - t) / 1000; })()"
    )
    assert seconds < 20, "half a second a step, on a machine that others use too"
    assert tab.faults() == []
    tab.close()


def test_bytes_stand_on_the_edges_before_and_after(tab: Tab) -> None:
    shown = "[...document.querySelectorAll('.bytes')].map((e) => e.textContent).filter(Boolean)"
    assert sorted(tab.run(shown)) == ["16.4 kB", "16.4 kB", "256 B"]
    assert tab.text(".moved") == "33 kB read from memory"
    tab.key("Home")
    assert sorted(tab.run(shown)) == ["16.4 kB", "16.4 kB", "16.4 kB", "256 B"]
    assert tab.text(".moved") == "49.4 kB read from memory"


def test_lines_are_wrapped_until_somebody_says_otherwise(tab: Tab) -> None:
    wrapped = "document.documentElement.dataset.wrap"
    assert tab.run(wrapped) == "yes"
    tab.key("w")
    assert tab.run(wrapped) == "" and "wrap=0" in tab.run("location.hash")


def test_the_roofline_has_a_tab(tab: Tab, tmp_path: Path) -> None:
    tab.click("#tab-roofline")
    assert tab.run("document.querySelectorAll('.roof .point').length") == 2
    assert tab.run("document.querySelectorAll('.roof .limit').length") == 3
    told = tab.text("#pane-roofline pre")
    assert "all kernels: " in told and "unfused: " in told and "% of the roof" in told
    tab.screenshot(tmp_path / "roofline.png")


def test_the_loop_order_is_played(tab: Tab, tmp_path: Path) -> None:
    tab.click("#tab-order")
    loops, slider = "#pane-order pre", "document.querySelector('#pane-order input')"
    tab.until(f"document.querySelector('{loops}').textContent.includes('for ')")  # it is drawn
    assert tab.run(f"{slider}.value") == "0"
    assert tab.run("document.querySelectorAll('#pane-order canvas').length") >= 2
    before = tab.text(loops)
    tab.run(f"{slider}.value = {slider}.max; {slider}.dispatchEvent(new Event('input'))")
    assert tab.run(f"{slider}.max") == "0" or tab.text(loops) != before
    tab.screenshot(tmp_path / "order.png")
    tab.click("#pane-order button")
    assert tab.text("#pane-order button") == "stop" or tab.run(f"{slider}.max") == "0"


def test_spills_stand_out(tab: Tab) -> None:
    table = (
        "(() => { const t = Panes.table({head: ['kernel', 'stack'], "
        "rows: [['a', '0'], ['b', '1,024']], warned: [1]}); "
        "return [...t.querySelectorAll('.bad')].map((e) => e.textContent); })()"
    )
    assert tab.run(table) == ["1,024"]


@pytest.mark.uncompiled("what the default rules make is compiled by their own tests")
def test_what_a_step_changed_comes_to_sight(browser: Browser, large: Path) -> None:
    tab = browser.open(large)
    tab.key("w")  # lines that are not wrapped all fit
    inside = (
        "((e, r) => e.top >= r.top && e.bottom <= r.bottom && e.left >= r.left)("
        "document.querySelector('{0}').getBoundingClientRect(),"
        "document.querySelector('{1}').getBoundingClientRect())"
    )
    last = tab.run("Store.page.steps.length - 1")
    stage_of_last = tab.run(f"Store.page.steps[{last}].stage")
    node = f'.node[data-s="{stage_of_last}"] .box'
    assert not tab.run(inside.format(node, "svg.graph")), "a graph that is longer than the window"
    tab.key("ArrowLeft")
    tab.key("ArrowRight")
    assert tab.run(inside.format(node, "svg.graph"))
    assert tab.run(inside.format(".nest .line.new", ".nest"))
    assert tab.faults() == []
    tab.close()


@pytest.mark.uncompiled("what the default rules make is compiled by their own tests")
def test_nodes_stand_inside_their_kernel_and_edges_point_down(
    browser: Browser, large: Path
) -> None:
    tab = browser.open(large)
    wrong = tab.run(
        """
        (() => {
          const found = [];
          Store.graphs.forEach((graph, at) => {
            const placed = Layout.place(graph, graph.nodes.map(() => ({ w: 90, h: 50 })));
            graph.nodes.forEach((node, n) => {
              const { x, y, w, h } = placed.nodes[n];
              for (const box of placed.boxes) {
                const inside = x - w / 2 >= box.x && x + w / 2 <= box.x + box.w &&
                  y - h / 2 >= box.y && y + h / 2 <= box.y + box.h;
                if (inside !== (box.cluster === node.cluster)) found.push([at, n, box.cluster]);
              }
            });
            for (const { from, to, points } of placed.edges) {
              const falls = points.every((p, i) => !i || p.y >= points[i - 1].y - 0.01);
              if (!falls) found.push([at, from, to]);
            }
          });
          return found;
        })()
        """
    )
    assert wrong == []
    tab.close()


def test_a_small_window_stacks_graph_and_texts(
    browser: Browser, product: Path, tmp_path: Path
) -> None:
    tab = browser.open(product, "#stage=C&step=6", width=700, height=900)
    top, bottom = (
        tab.run(f"document.getElementById('{side}').getBoundingClientRect().top")
        for side in ("left", "right")
    )
    assert bottom > top + 200
    assert tab.run("document.documentElement.scrollWidth") <= 700
    tab.screenshot(tmp_path / "small.png")
    tab.close()


def test_a_name_of_the_user_stays_a_name(browser: Browser, tmp_path: Path) -> None:
    tab = browser.open(hostile().view(tmp_path / "page.html", target="cpu").path)
    assert "caught" not in tab.run("document.title")[:7]
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert HOSTILE in tab.run("Store.page.stages[0].name")
    tab.click('.node[data-s="1"]')
    assert chosen(tab) == f"{HOSTILE}2"
    tab.key("/")
    tab.write("<script")
    assert tab.texts("#results .group")
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert tab.faults() == []
    tab.close()


def test_a_notebook_shows_the_page_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    view = fused_product().view(tmp_path / "page.html", target="cpu")
    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f'<!doctype html><html data-ready="yes"><body>{view._repr_html_()}</body></html>',
        encoding="utf-8",
    )
    tab = browser.open(notebook)
    frame = tab.frame()
    frame.until("document.documentElement?.dataset.ready === 'yes'")
    frame.run("State.set({ step: 3, tab: 'ir' })")
    assert frame.text(".what") != ""
    tab.screenshot(tmp_path / "frame.png")
    assert frame.faults() == [], "also without an address to keep"
    tab.close()
