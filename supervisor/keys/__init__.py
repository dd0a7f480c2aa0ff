"""Keys at rest: the daemon's own, those of clients on tcp, those of HTTP clients."""
