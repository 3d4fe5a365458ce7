"""The recorded spaces of the tests, and what searches them without hardware."""

from __future__ import annotations

from pathlib import Path

from tedsl.autotune.search.simulate.simulate import STRATEGIES, WITHOUT_TREES, Run, figures, replay

SPACES = Path(__file__).resolve().parents[1] / "data" / "spaces"

__all__ = ["SPACES", "STRATEGIES", "WITHOUT_TREES", "Run", "figures", "replay"]
