"""`python -m tedsl`: see `tedsl.cli.main`."""

import sys

from tedsl.cli.main import main

sys.exit(main())
