"""Sockets of this machine."""
