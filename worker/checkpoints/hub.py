"""A model's folder from the Hugging Face hub, or from its local cache."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

from ...protocol.errors import DflashError, ErrorCode
from ..errand import Progress
from .digest import TOKENIZER_FILES
from .fetch_lock import alone
from .weight_files import has_all_weights, weight_files

PATTERNS = ("*.safetensors", *TOKENIZER_FILES)
"""What a model needs: weights, and besides a tokenizer's files no others than its settings."""

SECOND_COPIES = ("consolidated*",)
"""The same weights once more, in a format that mlx-lm does not read."""


def hub_download(spec: str, progress: Progress) -> Path:
    """The newest snapshot of ``owner/name`` or ``owner/name@revision``; what is here already is not
    fetched again. Raises DflashError.
    """
    try:
        with ExitStack() as turn:
            with suppress(OSError):  # a file system without locks: the client does without, too
                turn.enter_context(alone(_lock_file(spec), progress))
            progress("download", 0, 0, "bytes")
            folder = _snapshot(spec, tqdm_class=_progress_bars(progress))
    except Exception as error:
        # The hub's client lets through what its HTTP library raises, another in each version.
        raise _explained(spec, error) from error
    if not weight_files(folder):  # without a network the client gives what there is
        raise DflashError(
            ErrorCode.not_found,
            f"{spec} has no weights in *.safetensors files, or only some of it is on this machine "
            f"and the hub cannot be reached: then connect once and run 'dflashctl pull {spec}'",
        )
    return folder


def hub_copy(spec: str) -> Path | None:
    """The complete snapshot that is on this disk, without asking anybody; raises DflashError.

    It is used as it is, so that a restart needs no network and changes no weights.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _snapshot(spec, local_files_only=True)
    except LocalEntryNotFoundError:  # nothing, or what an interrupted download left
        return None
    except Exception as error:
        raise _explained(spec, error) from error
    # Other programs fetch a model's tokenizer alone, which the client does not count as a part. If
    # it is the index that is wrong, the hub says that nothing is missing.
    return folder if has_all_weights(folder) else None


def _lock_file(spec: str) -> Path:
    """Where the hub's client has locks of its own for each file, and waits for them in silence."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.utils import validate_repo_id

    repo = spec.partition("@")[0]
    validate_repo_id(repo)
    return Path(HF_HUB_CACHE, ".locks", f"models--{repo.replace('/', '--')}", "dflashd.lock")


def _snapshot(spec: str, **options: Any) -> Path:
    import huggingface_hub

    download = cast("Any", huggingface_hub.snapshot_download)  # its stubs are partly unknown
    repo, _, revision = spec.partition("@")
    options |= {"allow_patterns": [*PATTERNS], "ignore_patterns": [*SECOND_COPIES]}
    return Path(download(repo, revision=revision or None, **options))


def _explained(spec: str, error: Exception) -> DflashError:
    """The hub's error as a sentence that says what to do."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case HFValidationError():
            return DflashError(ErrorCode.bad_request, f"{spec!r} is no repository name")
        case GatedRepoError():
            return DflashError(
                ErrorCode.unauthorised,
                f"{spec} is gated: accept its terms on the hub, then log in with 'hf auth login'",
            )
        case RepositoryNotFoundError():
            return DflashError(
                ErrorCode.not_found,
                f"the hub has no repository {spec} (if it is private: 'hf auth login'); "
                "a local folder is written as /path, ./path or ~/path",
            )
        case RevisionNotFoundError():
            return DflashError(ErrorCode.not_found, f"the hub knows no such revision: {spec}")
        case LocalEntryNotFoundError():
            return DflashError(
                ErrorCode.not_found,
                f"{spec} is not on this machine and the hub cannot be reached; connect once and "
                f"run 'dflashctl pull {spec}', or give the path of a local folder",
            )
        case _:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return DflashError(ErrorCode.load_failed, f"{spec} could not be fetched: {first}")


def _progress_bars(progress: Progress) -> type[Any]:
    """A class the hub takes for its progress bars: it draws nothing and reports bytes."""
    from tqdm import tqdm

    lock = threading.Lock()
    furthest = [0, 0]
    base: Any = tqdm  # its stubs make it generic, the class itself is not

    class Bar(base):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            return None

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self.unit == "B":
                with lock:  # several files at a time, and two bars that count the same bytes
                    furthest[0] = max(furthest[0], int(self.n))
                    furthest[1] = max(furthest[1], int(self.total or 0))
                    progress("download", furthest[0], furthest[1], "bytes")

    return Bar
