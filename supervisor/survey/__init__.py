"""The models on this disk, and which of them belong together; for a first configuration."""
