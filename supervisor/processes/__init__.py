"""Processes of ours: started, watched, signalled, reaped."""
