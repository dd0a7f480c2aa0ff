"""Pearson's chi-square test, with its quantile by Wilson and Hilferty: no scipy for one number."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Z = 3.719
"""The normal quantile of 1 - ALPHA."""
ALPHA = 1e-4
"""Chance that a right distribution is refused. Seeds are fixed, so it is met once or never."""
FEWEST = 5.0
"""Cells that expect fewer are counted together."""

Counts = NDArray[np.int64]
Probabilities = NDArray[np.float64]


def threshold(degrees: int) -> float:
    """The value that chi-square of ``degrees`` degrees of freedom exceeds with chance ALPHA."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + Z * math.sqrt(spread)) ** 3


def fits(counts: Counts, probabilities: Probabilities) -> bool:
    """Whether ``counts`` may be drawn from ``probabilities``; an impossible cell never may."""
    if counts[probabilities == 0].any():
        return False
    expected = probabilities * counts.sum()
    large = expected >= FEWEST
    found = _merged(counts.astype(float), large)
    wanted = _merged(expected, large)
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return bool(found.sum() == counts.sum())
    return bool(((found - wanted) ** 2 / wanted).sum() < threshold(len(wanted) - 1))


def alike(one: Counts, other: Counts) -> bool:
    """Whether two samples may be drawn from the same distribution."""
    total = one + other
    shares = np.array([one.sum(), other.sum()]) / total.sum()
    large = total * shares.min() >= FEWEST
    merged = _merged(total.astype(float), large)
    used = merged > 0
    statistic = 0.0
    for counts, share in zip((one, other), shares, strict=True):
        expected = merged[used] * share
        found = _merged(counts.astype(float), large)[used]
        statistic += float(((found - expected) ** 2 / expected).sum())
    return statistic < threshold(int(used.sum()) - 1)


def _merged(values: NDArray[np.float64], large: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.append(values[large], values[~large].sum())
