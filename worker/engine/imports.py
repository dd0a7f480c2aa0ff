"""Importing mlx in the order it needs, in a process of ours or of somebody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..log import line, log
from ..machine import blas, open_files

if TYPE_CHECKING:
    from .border import Engine


def prepare_blas() -> None:
    """Give mlx its fast BLAS if mlx is still to be imported; else say that it came too late."""
    try:
        report = blas.prepare()
    except RuntimeError as error:
        log.warning(line("blas_left_alone", reason=error))
        return
    log.info(line("blas", name=report.name, threads=report.threads, reason=report.reason))


def make_engine() -> Engine:
    """The engine of a worker process. Takes a second or two."""
    return _make_engine(private=True)


def make_guest_engine() -> Engine:
    """The same inside another application: its environment stays as it is."""
    return _make_engine(private=False)


def _make_engine(*, private: bool) -> Engine:
    prepare_blas()
    with open_files.kept():
        from ..machine import jit
        from . import memory
        from .mlx_engine import MlxEngine
    log.info(line("mlx_imported", jit=jit.prepare(private=private)))
    if private:
        memory.limit_spare()
        memory.keep_resident()
    return MlxEngine()
