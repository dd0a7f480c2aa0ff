"""Configurations: what they may say, where it comes from, how two differ."""
