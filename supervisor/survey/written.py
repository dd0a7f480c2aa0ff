"""The text of a first configuration, with the reason for each line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...protocol.messages import LoadBody
from ..config.limits import Limits
from ..core.facts import ModelFacts
from ..core.holdings import shown
from ..inspection import inspect
from ..pool import Pool
from .models import EMBEDDED_TARGET
from .pairs import Pair

BARE = re.compile(r"[A-Za-z0-9_-]+")
NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
LONGEST_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One model of the file."""

    name: str
    pair: Pair
    facts: ModelFacts
    fits: bool
    """Whether the pool has room for it alone; its section is commented out if not."""


def sections(pairs: Sequence[Pair], pool: Pool) -> list[Section]:
    """A name and the needs of each pair."""
    names: set[str] = set()
    made: list[Section] = []
    for pair in pairs:
        facts = inspect(
            LoadBody(target=pair.target, draft=pair.draft),
            concurrency=Limits().active_requests_per_worker,
            pool_bytes=pool.budget_bytes,
        )
        name = name_of(pair.target, names)
        names.add(name)
        fits = needed_bytes(facts) <= pool.budget_bytes
        made.append(Section(name=name, pair=pair, facts=facts, fits=fits))
    return made


def name_of(spec: str, taken: set[str]) -> str:
    """A name that people can type: the repository's, with its owner only where it must be."""
    whole = NOT_IN_A_NAME.sub("-", spec.partition("@")[0].lower().replace("/", "--"))
    short = whole.rpartition("--")[2].strip("._-") or "model"
    if short not in taken:
        return short[:LONGEST_NAME]
    candidates = (whole.strip("._-"), *(f"{short}-{n}" for n in range(2, len(taken) + 3)))
    return next(name for name in candidates if name not in taken)[:LONGEST_NAME]


def needed_bytes(facts: ModelFacts) -> int:
    """What it takes at least: weights and one request of its whole context, as it is reckoned."""
    return sum(part.size_bytes for part in facts.weights) + facts.requests_bytes


def text(
    made: Sequence[Section], waiting: Sequence[tuple[str, str]], pool: Pool, *, file: str
) -> str:
    """The whole file."""
    return "\n".join(lines(made, waiting, pool, file)) + "\n"


def lines(
    made: Sequence[Section], waiting: Sequence[tuple[str, str]], pool: Pool, file: str
) -> Iterator[str]:
    """Its lines."""
    yield "# A configuration of dflashd for the models that were found on this machine."
    yield f"# After a change: dflashctl config check {file}; then dflashctl reload"
    yield "# Every key with its default and its meaning: dflashd.example.toml"
    yield ""
    yield "[daemon]"
    yield f"# All models together may have {shown(pool.budget_bytes)} ({pool.source}):"
    yield "# memory_share = 0.8"
    yield ""
    yield "# With this section a gateway speaks HTTP, as OpenAI's and Anthropic's servers do:"
    yield "# [http]"
    yield "# port = 8383"
    for section in made:
        yield ""
        yield from section_lines(section)
    if not made:
        yield ""
        yield from first_model()
    if waiting:
        yield ""
        yield "# Drafts whose target was not found:"
        yield from (f"#   {spec}: {what}" for spec, what in waiting)


def section_lines(section: Section) -> Iterator[str]:
    """One model, with what it takes and why it has this draft."""
    pair, mark = section.pair, "" if section.fits else "# "
    yield f"# {about(section.facts)}"
    if not section.fits:
        yield "# More than the whole pool: left out. A smaller context_tokens or quantised weights"
        yield '# (dtype = "keep") may make room.'
    yield f"{mark}[models.{key(section.name)}]"
    yield f"{mark}target = {quoted(pair.target)}"
    if pair.draft:
        yield f"{mark}draft = {quoted(pair.draft)}"
        yield f"# ↑ {pair.why}"
    else:
        yield f"# {pair.why}"
    for spec in pair.others:
        yield f"# draft = {quoted(spec)}"
        yield "# ↑ made for it too: `dflashctl bench` with each says which is faster"
    for spec in pair.fitting:
        yield f"# draft = {quoted(spec)}"
        yield "# ↑ fits by its shape, but is named for another model: only if you know that it is"
        yield "#   this one's; a draft of another fine-tune is hardly ever right"


def first_model() -> Iterator[str]:
    """Something to begin with, where nothing was found."""
    yield "# No model was found. This one comes with dflashd; it is fetched when it is first used."
    yield f"[models.{key(EMBEDDED_TARGET)}]"
    yield f"target = {quoted(EMBEDDED_TARGET)}"
    yield f"draft = {quoted(EMBEDDED_TARGET + '-dflash')}"


def about(facts: ModelFacts) -> str:
    """What a model is and takes."""
    if facts.unknown:
        return f"its size is not known: {facts.unknown}"
    weights = shown(sum(part.size_bytes for part in facts.weights))
    dtype = "as stored" if facts.dtype == "keep" else f"in {facts.dtype}"
    requests = shown(facts.requests_bytes)
    return (
        f"{facts.model_type}, {facts.layers} layers: {weights} of weights ({dtype}), "
        f"{requests} for its requests"
    )


def key(name: str) -> str:
    """A name as a TOML key."""
    return name if BARE.fullmatch(name) else quoted(name)


def quoted(value: str) -> str:
    """A TOML string of what a repository or an embedded model is called."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
