"""The pure core: events (past tense) and a time go in, effects (imperative) come out.

Nothing here imports zmq, asyncio or time. ``machine.Core`` is the way in.
"""
