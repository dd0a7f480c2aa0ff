"""What top-p, min-p, top-k and temperature mean: a request's filter, token by token in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflashd.protocol.messages import Sampling


def filtered(logits: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    """The probabilities one row of ``logits`` [V] is sampled with."""
    logp = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    order = list(np.argsort(-logp))
    kept = set(order)
    if sampling.top_p is not None:
        mass, nucleus = 0.0, set[int]()
        for token in order:
            nucleus.add(token)
            mass += float(np.exp(logp[token]))
            if mass >= sampling.top_p:
                break
        kept &= nucleus
    if sampling.min_p:
        kept &= {token for token in order if logp[token] >= logp.max() + np.log(sampling.min_p)}
    if sampling.top_k:
        kept &= set(order[: sampling.top_k])
    weights = np.array([logp[token] if token in kept else -np.inf for token in range(len(logp))])
    weights = weights / (sampling.temperature or 1.0)
    weights = np.exp(weights - weights.max())
    return weights / weights.sum()
