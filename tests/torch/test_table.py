"""The documentation's table of operators is that of the registry."""

from __future__ import annotations

from typing import Any

import pytest
from sources import ROOT

table: Any = pytest.importorskip("tedsl.torch.importer.table")
PAGE = ROOT / "tutorials" / "docs" / "torch_operators.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == table.markdown(), (
        "python -m tedsl.torch.importer.table > tutorials/docs/torch_operators.md"
    )
