"""Every message of the wire, as typed values.

A *header* is what the supervisor reads; a *body* passes through it unread.
``docs/protocol.md`` is the normative description.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .errors import DflashError, ErrorCode

WINDOW_CHUNKS = 64
"""Chunks a sender may have in flight before it needs new credit."""

RequestId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""128 random bits, chosen by the client."""

# The lookahead keeps a final newline out, which a bare $ lets through.
_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$(?!\n)"
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME_PATTERN)]
"""A configured model or worker name."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Credit = Annotated[int, Meta(ge=1, le=WINDOW_CHUNKS)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Sentence = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=16 * 2**20)]


# Defaults are not sent: a peer that lacks a newer field only minds if the field is used.
# A default is therefore part of the contract and never changes.


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of all headers; unknown optional fields of a header are ignored."""


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all bodies. One that asks is refused with an unknown field: nothing asked for is
    ever ignored.
    """


class Report(Body, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of the bodies that tell; a reader ignores what it does not know."""


# --- client to supervisor, requests socket ---------------------------------------------------


class Hello(Header, tag="hello", frozen=True, kw_only=True):
    """First message of a connection; answered by :class:`Welcome`, and again whenever repeated."""

    client: Annotated[str, Meta(max_length=128)] = ""


class Generate(Header, tag="generate", frozen=True, kw_only=True):
    """Ask for one completion; body: :class:`GenerateBody`. Ends in exactly one Done or Failed."""

    id: RequestId
    model: Name
    credit: Credit = WINDOW_CHUNKS
    deadline_ms: Milliseconds | None = None


class AddCredit(Header, tag="credit", frozen=True, kw_only=True):
    """Allow ``chunks`` more chunks of request ``id`` (client to supervisor to worker)."""

    id: RequestId
    chunks: Credit


class Cancel(Header, tag="cancel", frozen=True, kw_only=True):
    """Stop request ``id``; it ends in Failed(cancelled) unless it had ended already."""

    id: RequestId


# --- client to supervisor, control socket ----------------------------------------------------


class Status(Header, tag="status", frozen=True, kw_only=True):
    """Ask for a :class:`Snapshot`. Never loads a model and never resets an idle clock."""

    id: RequestId


class Spawn(Header, tag="spawn", frozen=True, kw_only=True):
    """Load ``model`` now; Event(progress) while it loads, Done when it is ready."""

    id: RequestId
    model: Name


class Retire(Header, tag="retire", frozen=True, kw_only=True):
    """Unload ``model``: drain its requests first, or with ``now`` fail them; Done when gone."""

    id: RequestId
    model: Name
    now: bool = False


class ReadCache(Header, tag="read_cache", frozen=True, kw_only=True):
    """Ask for a loaded model's :class:`CacheState` (client to supervisor to worker)."""

    id: RequestId
    model: Name


class ClearCache(Header, tag="clear_cache", frozen=True, kw_only=True):
    """Empty a loaded model's cache, disk included; answered by the :class:`CacheState` after it."""

    id: RequestId
    model: Name


class Shutdown(Header, tag="shutdown", frozen=True, kw_only=True):
    """Stop the daemon; ``now`` skips the drain. Done is sent before the sockets close."""

    id: RequestId
    now: bool = False


# --- supervisor to client --------------------------------------------------------------------


class Welcome(Header, tag="welcome", frozen=True, kw_only=True):
    """Answer to :class:`Hello`: who serves, and its limits."""

    instance: Annotated[str, Meta(max_length=64)]
    version: Annotated[str, Meta(max_length=64)]
    window: Credit = WINDOW_CHUNKS


class Accepted(Header, tag="accepted", frozen=True, kw_only=True):
    """The request is ours; sent again when what it waits for changes. ``position`` 0: running."""

    id: RequestId
    position: Count = 0
    waits_for: Sentence = ""


class Chunk(Header, tag="chunk", frozen=True, kw_only=True):
    """Output of one decode cycle; body: :class:`ChunkBody`. ``seq`` counts from 0, no gaps."""

    id: RequestId
    seq: Count
    epoch: Epoch


class Done(Header, tag="done", frozen=True, kw_only=True):
    """The request succeeded; body: :class:`DoneBody` for a generate, empty for a control one."""

    id: RequestId
    epoch: Epoch | None = None


class Failed(Header, tag="failed", frozen=True, kw_only=True):
    """The request ended without success. ``id`` is None when a message could not be read."""

    code: ErrorCode
    message: Sentence
    id: RequestId | None = None
    epoch: Epoch | None = None
    retryable: bool = False
    retry_after_s: Seconds | None = None

    @classmethod
    def of(
        cls, error: DflashError, request_id: bytes | None = None, epoch: int | None = None
    ) -> Failed:
        """Return ``error`` as a header, its sentence cut so that the header stays small."""
        sentence = error.message.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore")
        return cls(
            code=error.code,
            message=sentence,
            id=request_id,
            epoch=epoch,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
        )

    def error(self) -> DflashError:
        """Return the exception this header stands for."""
        return DflashError(
            self.code,
            self.message,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
        )


class Snapshot(Header, tag="snapshot", frozen=True, kw_only=True):
    """Answer to :class:`Status`; body: :class:`SnapshotBody`."""

    id: RequestId


class CacheState(Header, tag="cache_state", frozen=True, kw_only=True):
    """Answer to :class:`ReadCache` and :class:`ClearCache`; body: :class:`CacheBody`."""

    id: RequestId
    epoch: Epoch | None = None


class Event(Header, tag="event", frozen=True, kw_only=True):
    """Something a waiting request ``id`` wants to know: load progress, for one."""

    id: RequestId
    name: Literal["progress", "state"]
    model: Name
    stage: Annotated[str, Meta(max_length=64)] = ""
    done: Count = 0
    total: Count = 0
    unit: Annotated[str, Meta(max_length=16)] = ""


# --- worker to supervisor --------------------------------------------------------------------


class Register(Header, tag="register", frozen=True, kw_only=True):
    """First message of a worker incarnation. ``secret`` comes from its environment."""

    worker: Name
    epoch: Epoch
    pid: Count
    secret: Annotated[bytes, Meta(min_length=16, max_length=64)]


class Progress(Header, tag="progress", frozen=True, kw_only=True):
    """A load moved: ``done`` of ``total`` ``unit`` in ``stage``. Feeds the stall timer."""

    epoch: Epoch
    model: Name
    stage: Annotated[str, Meta(max_length=64)]
    done: Count = 0
    total: Count = 0
    unit: Annotated[str, Meta(max_length=16)] = ""


class Loaded(Header, tag="loaded", frozen=True, kw_only=True):
    """The model is ready; body: :class:`LoadedBody`."""

    epoch: Epoch
    model: Name


class LoadFailed(Header, tag="load_failed", frozen=True, kw_only=True):
    """The model could not be loaded, and nothing of it is left in the worker."""

    epoch: Epoch
    model: Name
    code: ErrorCode
    message: Sentence


class Unloaded(Header, tag="unloaded", frozen=True, kw_only=True):
    """The model is gone from this worker and its memory is given back."""

    epoch: Epoch
    model: Name


class Pong(Header, tag="pong", frozen=True, kw_only=True):
    """Answer to :class:`Ping`. ``steps`` counts engine steps: it moves while work moves."""

    epoch: Epoch
    n: Count
    steps: Count
    active: Count
    memory_bytes: Count


# --- supervisor to worker --------------------------------------------------------------------


class Registered(Header, tag="registered", frozen=True, kw_only=True):
    """The incarnation is accepted."""

    epoch: Epoch


class Load(Header, tag="load", frozen=True, kw_only=True):
    """Load one model; body: :class:`LoadBody`. Answered by Loaded or LoadFailed."""

    epoch: Epoch
    model: Name


class Unload(Header, tag="unload", frozen=True, kw_only=True):
    """Unload one model; its running requests fail. Answered by Unloaded."""

    epoch: Epoch
    model: Name


class Assign(Header, tag="assign", frozen=True, kw_only=True):
    """Run a request; the body is the client's :class:`GenerateBody`, unread."""

    id: RequestId
    epoch: Epoch
    model: Name
    credit: Credit
    deadline_ms: Milliseconds | None = None
    queued_ms: Count = 0
    load_ms: Count = 0


class Stop(Header, tag="stop", frozen=True, kw_only=True):
    """Finish nothing more: leave the process in an orderly way, exit status 0."""

    epoch: Epoch


class Ping(Header, tag="ping", frozen=True, kw_only=True):
    """Health question; answered by :class:`Pong` from the worker's I/O thread."""

    epoch: Epoch
    n: Count


FromClient = Hello | Generate | AddCredit | Cancel
FromControl = Hello | Status | Spawn | Retire | ReadCache | ClearCache | Shutdown | Cancel
ToClient = Welcome | Accepted | Chunk | Done | Failed | Snapshot | CacheState | Event
FromWorker = (
    Register | Progress | Loaded | LoadFailed | Unloaded | Chunk | Done | Failed | CacheState | Pong
)
ToWorker = (
    Registered | Load | Unload | Assign | AddCredit | Cancel | ReadCache | ClearCache | Stop | Ping
)


# --- bodies ----------------------------------------------------------------------------------


class ChatMessage(Body, frozen=True, kw_only=True):
    """One turn of a conversation, for the model's chat template."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: Text


class Sampling(Body, frozen=True, kw_only=True):
    """How tokens are drawn. None means the model's configured default (temperature 0: greedy)."""

    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class GenerateBody(Body, frozen=True, kw_only=True):
    """What to generate. Exactly one of ``prompt``, ``messages``, ``tokens`` is given."""

    prompt: Text | None = None
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=4096)] | None = None
    tokens: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=2**20)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    stop: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=512)], ...], Meta(max_length=16)
    ] = ()
    sampling: Sampling = Sampling()
    speculation: Literal["auto", "strict", "off"] = "auto"
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError, which the codec reports as bad_request."""
        if sum(given is not None for given in (self.prompt, self.messages, self.tokens)) != 1:
            raise ValueError("exactly one of prompt, messages, tokens must be given")


class ChunkBody(Report, frozen=True, kw_only=True):
    """Tokens of one decode cycle, and the text they complete (possibly empty)."""

    tokens: tuple[Token, ...]
    text: Text


class DoneBody(Report, frozen=True, kw_only=True):
    """What a finished generation tells about itself."""

    finish_reason: Literal["stop", "length"]
    engine: Literal["dflash", "plain"]
    engine_reason: Sentence = ""
    stop_string: str | None = None
    model: Name
    digest: Annotated[str, Meta(max_length=128)]
    worker_pid: Count
    block_tokens: Count
    cycles: Count
    acceptance_length_tokens: Annotated[float, Meta(ge=0)]
    prompt_tokens: Count
    cached_tokens: Count
    generated_tokens: Count
    queued_ms: Annotated[float, Meta(ge=0)]
    load_ms: Annotated[float, Meta(ge=0)]
    ttft_ms: Annotated[float, Meta(ge=0)]
    prefill_ms: Annotated[float, Meta(ge=0)]
    decode_ms: Annotated[float, Meta(ge=0)]
    memory_bytes: Count
    cache_hit: Annotated[str, Meta(max_length=32)] = "miss"
    cache_miss_reason: Annotated[str, Meta(max_length=32)] = ""


class CacheSettings(Body, frozen=True, kw_only=True):
    """A model's prefix cache. Prompts are kept on disk only where ``disk_bytes`` allows it."""

    enabled: bool = True
    ram_bytes: Count = 2 * 2**30
    disk_bytes: Count = 0
    disk_root_bytes: Count = 64 * 2**30
    disk_dir: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    reuse: Literal["longest", "aligned"] = "longest"


class LoadBody(Body, frozen=True, kw_only=True):
    """A model's configuration, as the worker needs it."""

    target: Annotated[str, Meta(min_length=1, max_length=4096)]
    draft: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "keep"] = "auto"
    block_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    context_tokens: Annotated[int, Meta(ge=1)] | None = None
    prefill_chunk_tokens: Annotated[int, Meta(ge=1, le=65536)] = 512
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] = 512
    sampling: Sampling = Sampling()
    cache: CacheSettings = CacheSettings()


class LoadedBody(Report, frozen=True, kw_only=True):
    """What a worker found when it loaded a model."""

    digest: Annotated[str, Meta(max_length=128)]
    engine: Literal["dflash", "plain"]
    block_tokens: Count
    context_tokens: Count
    memory_bytes: Count
    device: Annotated[str, Meta(max_length=64)]
    dtype: Annotated[str, Meta(max_length=32)]


class CacheBody(Report, frozen=True, kw_only=True):
    """One model's prefix cache, since its model was loaded. Maps count by reason or kind."""

    state: Annotated[str, Meta(max_length=256)]
    identity: Annotated[str, Meta(max_length=128)] = ""
    fingerprint: Annotated[str, Meta(max_length=128)] = ""
    ram_entries: Count = 0
    ram_tokens: Count = 0
    ram_bytes: Count = 0
    ram_limit_bytes: Count = 0
    disk: Sentence = ""
    disk_entries: Count = 0
    disk_bytes: Count = 0
    disk_limit_bytes: Count = 0
    disk_queued: Count = 0
    disk_written: Count = 0
    disk_written_bytes: Count = 0
    disk_dropped: dict[str, Count] = {}
    disk_removed: Count = 0
    disk_bad_files: dict[str, Count] = {}
    hits: dict[str, Count] = {}
    misses: dict[str, Count] = {}
    cached_tokens: Count = 0
    stored: Count = 0
    not_stored: dict[str, Count] = {}
    evictions: Count = 0
    superseded: Count = 0


class WorkerStatus(Report, frozen=True, kw_only=True):
    """One worker, as the supervisor knows it."""

    name: Name
    state: Annotated[str, Meta(max_length=32)]
    epoch: Count
    pid: Count | None
    models: tuple[Name, ...]
    active: Count
    memory_bytes: Count
    restarts: Count
    retry_in_s: Seconds | None = None
    reason: Sentence = ""


class ModelStatus(Report, frozen=True, kw_only=True):
    """One configured model, as the supervisor knows it."""

    name: Name
    target: str
    draft: str | None
    worker: Name
    state: Annotated[str, Meta(max_length=32)]
    queued: Count
    active: Count
    completed: Count
    loads: Count
    unloads: Count
    stage: str = ""
    stage_done: Count = 0
    stage_total: Count = 0
    loaded: LoadedBody | None = None


class SnapshotBody(Report, frozen=True, kw_only=True):
    """The daemon's whole state, for people and tests."""

    instance: str
    version: str
    pid: Count
    uptime_s: Seconds
    state: Literal["serving", "draining"]
    workers: tuple[WorkerStatus, ...]
    models: tuple[ModelStatus, ...]
    counters: dict[str, Any]


BODY_OF: dict[type[Header], type[Body]] = {
    Generate: GenerateBody,
    Chunk: ChunkBody,
    Done: DoneBody,
    Snapshot: SnapshotBody,
    CacheState: CacheBody,
    Load: LoadBody,
    Loaded: LoadedBody,
    Assign: GenerateBody,
}
"""The kinds that carry a body; every other kind has an empty body frame."""

BODY_MAY_BE_EMPTY = frozenset[type[Header]]({Done})
"""Kinds of :data:`BODY_OF` whose body is left out in some uses."""
