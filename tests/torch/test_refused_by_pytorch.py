"""What PyTorch's kernels refuse when they run is theirs: compiled functions refuse it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="tedsl")


WORDS = "Expected reduction dim|does not support bool|inf norm on an empty tensor"
REFUSED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "largest of nothing": (lambda x: x.max() + 1, torch.zeros(0)),
    "smallest integer of nothing": (lambda x: x.min(), torch.zeros(0, dtype=torch.int32)),
    "largest of empty rows, and its place": (lambda x: x.max(1), torch.zeros(2, 0)),
    "smallest of empty rows, kept": (lambda x: x.min(1, True), torch.zeros(2, 0)),
    "place in empty rows": (lambda x: x.argmax(1), torch.zeros(2, 0)),
    "largest size of nothing": (lambda x: torch.linalg.vector_norm(x, torch.inf), torch.zeros(0)),
    "place among bools": (lambda x: x.argmin(), torch.tensor([True, False])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_extremes_that_there_are_not(name: str) -> None:
    function, x = REFUSED[name]
    for call in (function, compiled(function)):
        with pytest.raises((RuntimeError, IndexError), match=WORDS):
            call(x)


def test_extremes_of_no_rows_are_no_extremes() -> None:
    """There is nothing to refuse where there is no result."""
    for found, wanted in zip(
        compiled(lambda x: (x.amax(1), *x.max(1)))(torch.zeros(0, 3)),
        (torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)
