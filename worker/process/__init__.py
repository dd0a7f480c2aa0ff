"""A worker process: its start, its end, and its place on the socket."""
