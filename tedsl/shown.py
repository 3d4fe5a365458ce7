"""What schedules, tensors and kernels have in common for a person who looks at them: the mixin for
`_repr_html_`, and the one for `view`.

The pictures are made by `tedsl.view`, the last room but the command line: what is shown must not
know how.  So it is named here, and nowhere else, and loaded when it is first asked for.  Imports
nothing of the package.
"""

from __future__ import annotations

import importlib
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tedsl.view import View


def _viewer() -> Any:
    """The package that shows things."""
    return importlib.import_module("tedsl.view")


class InNotebook:
    """Something that a notebook shows as a card."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _viewer().card(self)


class Viewable(InNotebook):
    """Something that has a page of its own."""

    __slots__ = ()

    def view(
        self,
        path: str | PathLike[str] | None = None,
        *,
        target: Any = None,
        show: bool = False,
    ) -> View:
        """Write one HTML file that shows everything: the graph with what is fused, the loop nest
        after each step of the schedule, the loop IR after each pass, and the code of a kernel.

        The file needs no network and no other file.

        Args:
            path: where to write; by default `<name>.html` in the current folder.
            target: of a schedule, where it is to run; by default what it was created for, else
                where `te.build` would run it.  A kernel has its own.
            show: also open it in the browser.

        Returns:
            The view: `view.path` is the file; at the end of a notebook's cell it is shown there.

        Raises:
            BackendError: a target that there is not, or another one than the kernel's.
            OSError: the file cannot be written.
        """
        return _viewer().view(self, path, target=target, show=show)
