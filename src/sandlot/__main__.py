"""``python -m sandlot`` is the program ``sandlot``."""

import sys

from sandlot.cli import main

if __name__ == "__main__":
    sys.exit(main())
