"""Facts of a configured model from its files alone: what loading it will take.

**What is reserved.** Weights in the type the worker computes in. Keys and values of one request of
the whole declared context, and of a chunk of prompt and ``max_tokens`` for each other request that
may run beside it: every admitted request can end, without room for a crowd of longest ones that
hardly ever meet. The prefix cache up to one whole context of one request; the rest of its
``ram_bytes`` is a bound, not a need, and counts when a worker is seen to use it.
"""

from .facts import inspect

__all__ = ["inspect"]
