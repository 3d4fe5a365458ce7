"""The viewer: one HTML file that shows a schedule or a kernel, and cards for notebooks.

Python collects (`collect`, `graph`, `texts`, `code`) into plain data (`data`); the page's scripts
in `assets/` show it.  Nothing is decided here about the computation, and nothing is loaded from the
network.  Last room but the command line; may import all the others.
"""

from tedsl.view.cards import card
from tedsl.view.page import View, view

__all__ = ["View", "card", "view"]
