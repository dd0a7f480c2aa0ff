"""A BLAS is tried in a process of its own before mlx may use it.

A library built for another CPU does not fail politely: it dies of an illegal instruction, or
computes nonsense. This file is run by path (``python -I blas_canary.py LIBRARY``) and needs
nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112

# (rows, columns, inner): one row as in decoding, odd edges, and one large enough for threads.
SHAPES = ((1, 96, 64), (5, 33, 17), (32, 64, 96), (192, 192, 192))


def check(library: ctypes.CDLL) -> str:
    """Empty if the library's single and double products are right, else what is wrong."""
    functions: tuple[tuple[str, type[ctypes.c_float | ctypes.c_double]], ...] = (
        ("cblas_sgemm", ctypes.c_float),
        ("cblas_dgemm", ctypes.c_double),
    )
    for name, real in functions:
        try:
            gemm = getattr(library, name)
        except AttributeError:
            return f"it does not export {name}"
        for shape in SHAPES:
            for transposed in (False, True):
                if not _is_right(gemm, real, shape, transposed=transposed):
                    return f"{name} computes a wrong result for shape {shape}"
    return ""


def _is_right(
    gemm: Callable[..., None],
    real: type[ctypes.c_float | ctypes.c_double],
    shape: tuple[int, int, int],
    *,
    transposed: bool,
) -> bool:
    """Small integers multiply exactly in any order of summation, so equality is the test."""
    rows, columns, inner = shape
    a = [[(3 * i + 5 * k) % 7 - 3 for k in range(inner)] for i in range(rows)]
    b = [[(2 * k + 3 * j) % 5 - 2 for j in range(columns)] for k in range(inner)]
    stored_b = [[b[k][j] for k in range(inner)] for j in range(columns)] if transposed else b
    out = (real * (rows * columns))()
    gemm(
        *(ROW_MAJOR, PLAIN, TRANSPOSED if transposed else PLAIN, rows, columns, inner),
        *(real(1), _array(real, a), inner),
        *(_array(real, stored_b), inner if transposed else columns),
        *(real(0), out, columns),
    )
    sampled = range(0, rows * columns, max(1, rows * columns // 500))
    return all(
        out[at] == sum(a[at // columns][k] * b[k][at % columns] for k in range(inner))
        for at in sampled
    )


def _array(
    real: type[ctypes.c_float | ctypes.c_double], rows: list[list[int]]
) -> ctypes.Array[ctypes.c_float] | ctypes.Array[ctypes.c_double]:
    flat = [float(value) for row in rows for value in row]
    return (real * len(flat))(*flat)


def main(path: str) -> int:
    """Print the verdict as JSON: ``{"wrong": ""}`` for a library that may be used."""
    wrong = check(ctypes.CDLL(path, ctypes.RTLD_GLOBAL))
    sys.stdout.write(json.dumps({"wrong": wrong}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
