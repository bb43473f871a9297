"""`python -m shardwright.cli`, where the `shardwright` script is not on the path."""

import sys

from shardwright.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
