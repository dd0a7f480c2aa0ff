"""Combinations of versions that fail are named with the reason and the way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflashd.supervisor.directories import make_private
from dflashd.supervisor.doctor import host, model_libraries
from dflashd.supervisor.doctor.known_bad import Site, known_bad
from dflashd.supervisor.errors import UnsafeDirectory

GOOD = {"mlx": "0.32.4", "mlx-cpu": "0.32.4", "mlx-lm": "0.32.2", "libzmq": "4.3.5"}


def said(
    versions: dict[str, str | None], system: str = "Linux", machine: str = "x86_64"
) -> list[str]:
    installed = {**GOOD, **{name.replace("_", "-"): of for name, of in versions.items()}}
    present = {name: version for name, version in installed.items() if version is not None}
    return [f.says for f in known_bad(Site(system=system, machine=machine, versions=present))]


def test_what_works_is_not_accused() -> None:
    """A good installation has no finding."""
    assert said({}) == []
    assert said({"transformers": "5.14.0"}) == []


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"transformers": "5.13.0", "mlx_lm": "0.31.3"}, "importing mlx_lm fails"),
        ({"mlx_cpu": None}, "libmlx.so"),
        ({"mlx_cuda_13": "0.32.4"}, "two packages"),
        ({"mlx_cpu": "0.31.0"}, "different versions"),
        ({"libzmq": "4.3.2"}, "CVE-2020-15166"),
    ],
)
def test_each_known_combination_is_found(versions: dict[str, str | None], words: str) -> None:
    """Its reason is told."""
    assert any(words in sentence for sentence in said(versions))


def test_a_translated_python_is_found() -> None:
    """On a Mac, an x86 Python has no Metal."""
    assert any("Rosetta" in sentence for sentence in said({"mlx_cpu": None}, "Darwin"))


def test_model_libraries_that_kill_their_process_are_a_finding() -> None:
    """A process that aborts on import is told with its last words; what it found before stays."""
    code = (
        'import os, sys; print(\'{"name":"machine","says":"fine"}\', flush=True);'
        "sys.stderr.write('libmlx is broken'); sys.stderr.flush(); os.abort()"
    )
    first, last = model_libraries.look((sys.executable, "-c", code))
    assert first.says == "fine"
    assert last.level == "problem"
    assert "libmlx is broken" in last.says


def test_findings_are_told_apart_from_what_libraries_print() -> None:
    """A library's own words, or a line that was cut off, do not end the doctor."""
    code = """if True:
        print("loading...")
        print('{"name": "blas", "says": "ok"}')
        print('{"name": "dev', end="")
    """
    [finding] = model_libraries.look((sys.executable, "-c", code))
    assert finding.name == "blas"


def test_directory_is_judged_as_the_daemon_will(short_dir: Path) -> None:
    """One that cannot be closed to others is a problem with a way out; the daemon says the same."""
    folder = short_dir / "run"
    assert host.sockets(folder).level == "ok"
    folder.mkdir()
    folder.chmod(0o755)
    assert host.sockets(folder).level == "ok"  # the daemon closes it
    (folder / "theirs").touch()
    found = host.sockets(folder)
    assert (found.level, f"chmod 700 {folder}" in found.says) == ("problem", True)
    with pytest.raises(UnsafeDirectory, match="holds other files") as refused:
        make_private(folder)
    assert str(refused.value) == found.says
    folder.chmod(0o700)
    assert host.sockets(folder).level == "ok"
    make_private(folder)
