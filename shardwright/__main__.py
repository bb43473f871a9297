"""`python -m shardwright`: the command line."""

from shardwright.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
