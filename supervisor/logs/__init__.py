"""The daemon's own log, and its workers'."""
