"""`python -m shardwright`: the command line."""

from shardwright.cli.main import enter

if __name__ == "__main__":
    enter()
