"""The model process of dflashd: engine, caches, registry, checkpoints."""
