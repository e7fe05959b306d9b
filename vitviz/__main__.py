"""``python -m vitviz`` is the command ``vitviz``."""

import sys

from vitviz.cli import main

sys.exit(main())
