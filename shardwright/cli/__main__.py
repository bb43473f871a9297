"""`python -m shardwright.cli`, where the `shardwright` script is not on the path."""

from shardwright.cli.main import enter

if __name__ == "__main__":
    enter()
