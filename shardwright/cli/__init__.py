"""The command line: `shardwright train | plan | compile | prove | clusters`."""
