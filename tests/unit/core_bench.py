"""A core with several models of known sizes, sound workers, and a clock that a test sets."""

from __future__ import annotations

from typing import Any

import msgspec

from dflashd.protocol.messages import (
    Done,
    Event as Told,
    Generate,
    Header,
    Load,
    Loaded,
    LoadedBody,
    Ping,
    Pong,
    Register,
    Retire,
    Spawn,
    Stop,
    Unload,
    Unloaded,
)
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.core.effects import (
    Effect,
    InspectModel,
    Note,
    SendToClient,
    SendToWorker,
    SignalProcess,
    SpawnProcess,
)
from dflashd.supervisor.core.events import (
    ClientSent,
    Event,
    ModelInspected,
    Peer,
    ProcessStarted,
    ServingBegan,
    TimePassed,
    WorkerExited,
    WorkerSent,
)
from dflashd.supervisor.core.facts import PROCESS_BYTES, ModelFacts, Weights
from dflashd.supervisor.core.machine import Core
from dflashd.supervisor.core.records import Model
from dflashd.supervisor.core.snapshot import Identity

GIB = 2**30
PEER, OWNER = Peer("requests", b"peer"), Peer("control", b"owner")


class CoreBench:
    """``sizes`` in GiB by model name; the pool is given without the workers' own processes.

    Workers load, unload and leave at once, unless a test puts their name into ``slow``.
    """

    def __init__(
        self,
        sizes: dict[str, float],
        pool: float,
        sections: dict[str, dict[str, Any]] | None = None,
        **limits: Any,
    ) -> None:
        identity = Identity(instance="i", version="v", pid=1, started_at=0)
        models = {n: ModelSection(target=n, **(sections or {}).get(n, {})) for n in sizes}
        pool_bytes = int(pool * GIB) + len(sizes) * PROCESS_BYTES
        bounds = Limits(**{"min_residency_s": 2, "max_wait_behind_s": 20, **limits})
        self.core = Core(bounds, models, identity, lambda: 1.0, pool_bytes=pool_bytes)
        self.sizes = sizes
        self.slow: set[str] = set()
        self.now = 100.0
        self.heard: list[Effect] = []
        self.ids = 0

    # --- in ------------------------------------------------------------------------------------

    def give(self, event: Event) -> list[Effect]:
        """Hand an event over and let the world react; all effects that came of it."""
        effects = self.core.handle(event, self.now)
        self.heard += effects
        for effect in list(effects):
            effects += self.react(effect)
        return effects

    def react(self, effect: Effect) -> list[Effect]:
        """What the world does about one effect."""
        match effect:
            case InspectModel(model=model) if f"inspect {model}" not in self.slow:
                return self.inspected(model)
            case SpawnProcess(worker=name, epoch=epoch):
                effects = self.give(ProcessStarted(worker=name, epoch=epoch, pid=5))
                register = Register(worker=name, epoch=epoch, pid=5, secret=b"s" * 16)
                return effects + self.says(name, register)
            case SendToWorker(worker=name, header=header):
                return self.obey(name, header)
            case _:
                return []

    def obey(self, worker: str, header: Header) -> list[Effect]:
        """What a worker does about one message."""
        match header:
            case Load(model=model) if model not in self.slow:
                return self.loaded(worker, model)
            case Unload(model=model) if model not in self.slow:
                return self.unloaded(worker, model)
            case Stop() if f"stop {worker}" not in self.slow:
                return self.exit(worker)
            case Ping(n=n) if "pong" not in self.slow:
                return self.pong(worker, n)
            case _:
                return []

    def inspected(self, model: str) -> list[Effect]:
        weights = Weights(key=model, size_bytes=int(self.sizes[model] * GIB))
        facts = ModelFacts(model_type="llama", weights=(weights,), dtype="float32")
        return self.files_say(model, facts)

    def files_say(self, model: str, facts: ModelFacts) -> list[Effect]:
        body = self.core.state.models[model].settings.load_body
        return self.give(ModelInspected(model=model, body=body, facts=facts))

    def says(self, worker: str, header: Header, body: bytes = b"") -> list[Effect]:
        epoch = self.core.state.workers[worker].epoch
        return self.give(WorkerSent(worker=worker, epoch=epoch, header=header, body=body))

    def loaded(self, worker: str, model: str) -> list[Effect]:
        body = LoadedBody(
            digest="d",
            engine="dflash",
            block_tokens=8,
            context_tokens=9,
            memory_bytes=int(self.sizes[model] * GIB),
            device="cpu",
            dtype="float32",
        )
        epoch = self.core.state.workers[worker].epoch
        return self.says(worker, Loaded(epoch=epoch, model=model), msgspec.msgpack.encode(body))

    def unloaded(self, worker: str, model: str) -> list[Effect]:
        epoch = self.core.state.workers[worker].epoch
        return self.says(worker, Unloaded(epoch=epoch, model=model))

    def pong(self, worker: str, n: int = 1, memory: float | None = None) -> list[Effect]:
        row = self.core.state.workers[worker]
        held = sum(self.sizes[m.name] for m in self.models if m.loaded and m.worker == worker)
        memory_bytes = int((held if memory is None else memory) * GIB) + PROCESS_BYTES // 2
        header = Pong(
            epoch=row.epoch, n=n, steps=row.steps + 1, active=0, memory_bytes=memory_bytes
        )
        return self.says(worker, header)

    def exit(self, worker: str, status: int = 0) -> list[Effect]:
        epoch = self.core.state.workers[worker].epoch
        return self.give(WorkerExited(worker=worker, epoch=epoch, status=status))

    # --- clients -------------------------------------------------------------------------------

    def new_id(self) -> bytes:
        self.ids += 1
        return self.newest_id

    @property
    def newest_id(self) -> bytes:
        return self.ids.to_bytes(16, "big")

    def begin(self) -> None:
        self.give(ServingBegan())

    def generate(self, model: str, **fields: Any) -> bytes:
        id = self.new_id()
        self.give(ClientSent(peer=PEER, header=Generate(id=id, model=model, **fields), body=b"p"))
        return id

    def done(self, id: bytes) -> list[Effect]:
        request = self.core.state.requests[id]
        return self.says(request.worker, Done(id=id, epoch=request.epoch))

    def spawn(self, model: str, **fields: Any) -> bytes:
        return self.command(Spawn(id=self.new_id(), model=model, **fields))

    def retire(self, model: str, *, now: bool = False) -> bytes:
        return self.command(Retire(id=self.new_id(), model=model, now=now))

    def command(self, header: Any) -> bytes:
        self.give(ClientSent(peer=OWNER, header=header))
        return header.id

    def pass_time(self, seconds: float) -> None:
        """Let time pass in ticks, as the shell does."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.give(TimePassed())

    # --- what came of it -----------------------------------------------------------------------

    @property
    def models(self) -> list[Model]:
        return list(self.core.state.models.values())

    def state(self, model: str) -> str:
        return self.core.state.models[model].state

    def resident(self) -> set[str]:
        return {model.name for model in self.models if model.state == "ready"}

    def answer(self, id: bytes) -> Any:
        """The last thing a client was told about ``id``, progress apart."""
        sent = [e.header for e in self.heard if isinstance(e, SendToClient)]
        about = [h for h in sent if getattr(h, "id", None) == id and not isinstance(h, Told)]
        return about[-1] if about else None

    def notes(self, name: str) -> list[dict[str, Any]]:
        return [e.fields for e in self.heard if isinstance(e, Note) and e.name == name]

    def ordered(self, kind: type[Header]) -> list[Any]:
        return [
            e.header for e in self.heard if isinstance(e, SendToWorker) and type(e.header) is kind
        ]

    def killed(self) -> list[str]:
        return [e.worker for e in self.heard if isinstance(e, SignalProcess)]
