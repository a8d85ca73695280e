"""`python -m legato` runs the command `legato`."""

from __future__ import annotations

import sys

from legato.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
