"""The way in from other machines: ZeroMQ on tcp, encrypted, for keys that are allowed by name."""
