"""The loop: data, the demo's model, progress, and the recipe of `shardwright train`."""
