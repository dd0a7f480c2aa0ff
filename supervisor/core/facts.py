"""What is known of a model before it is loaded: the sizes that admission reckons with."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.messages import LoadBody

PROCESS_BYTES = 128 * 2**20
"""A worker before its first model: interpreter, libraries, a tokenizer (measured: 85 to 130 MB)."""

UNDECLARED_CONTEXT_TOKENS = 8192
"""The context that is counted where none is declared: few ever use all a model was made for."""


class Weights(Struct, frozen=True, kw_only=True):
    """One checkpoint in memory. Models of a worker that have equal ``key`` hold it once."""

    key: str
    size_bytes: int


class ModelFacts(Struct, frozen=True, kw_only=True):
    """A model by its files. ``unknown`` says why they tell nothing; all else is empty then."""

    unknown: str = ""
    model_type: str = ""
    layers: int = 0
    dtype: str = "auto"
    """What the worker is to be told, so that it computes in what was reckoned with."""

    weights: tuple[Weights, ...] = ()
    cast_bytes: int = 0
    """The largest tensor while it is cast, which is there twice."""

    requests_bytes: int = 0
    """Keys, values and states of the requests that run at once."""

    cache_bytes: int = 0
    """The prefix cache as far as it is reserved for."""

    @property
    def own_bytes(self) -> int:
        """All but the weights and the process."""
        return self.cast_bytes + self.requests_bytes + self.cache_bytes


def counted_context(body: LoadBody, longest_tokens: int) -> int:
    """The context that memory is reserved for: as declared, else a common one."""
    if body.context_tokens is not None:
        return body.context_tokens
    return min(longest_tokens or UNDECLARED_CONTEXT_TOKENS, UNDECLARED_CONTEXT_TOKENS)
