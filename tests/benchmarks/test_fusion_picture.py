"""The README's first picture is of what is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusion_picture import STAGES, attention, draw, inlined, line, one_pass

import tedsl as te

README = Path(__file__).parent.parent.parent / "README.md"


@pytest.mark.cpu
def test_the_picture_shows_as_many_kernels_as_the_readme_says(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [
        line("alone", te.create_schedule(attention())),
        line("inlined", inlined()),
        line("one pass", one_pass()),
    ]
    assert [each.kernels for each in lines] == [6, 4, 1]
    assert line("rules", attention()).kernels == 1
    assert "six kernels, four or one" in README.read_text(encoding="utf-8")
    assert all(set(each.kernel_of) >= set(STAGES) for each in lines)
    draw(lines, tmp_path / "fusion.svg")
    assert (tmp_path / "fusion.svg").stat().st_size > 1000
