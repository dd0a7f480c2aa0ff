"""The engine as a library inside another application."""
