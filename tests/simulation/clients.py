"""Simulated clients and the owner: what they ask, and what they may hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dflashd.protocol.errors import ErrorCode
from dflashd.protocol.messages import (
    Accepted,
    AddCredit,
    CacheState,
    Cancel,
    Chunk,
    ClearCache,
    Done,
    Failed,
    Generate,
    Header,
    Logs,
    Metrics,
    Pin,
    ReadCache,
    Reload,
    Reloaded,
    Retire,
    Shutdown,
    Spawn,
    Status,
    Subscribe,
)
from dflashd.supervisor.core.effects import SendMetrics, SendSnapshot, StartWatch
from dflashd.supervisor.core.events import (
    ClientErred,
    ClientOverflowed,
    ClientSent,
    ClientVanished,
    Peer,
)

from .setting import ASKED, LIMITS, MODELS

if TYPE_CHECKING:
    from .world import World

THIEF = Peer("requests", b"thief")
RECENT = 20
"""So many of the last requests may still be cancelled, ended or not."""


@dataclass(slots=True, eq=False)
class Asked:
    """What a client remembers of one request or command."""

    peer: Peer
    what: str
    seq: int = 0
    leased: bool = False
    ended: bool = False
    end: str = ""


class Clients:
    """All clients; every message to one of them is held against what it asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._born = 0
        self.asked: dict[bytes, Asked] = {}
        self.open: dict[bytes, Asked] = {}
        """What was asked by somebody still there, and not answered."""
        self.seen: set[str] = set()
        self.owner = Peer("control", b"owner")
        self.peers = [self._new_peer() for _ in range(4)]

    # --- what they hear --------------------------------------------------------------------------

    def hear(self, peer: Peer, header: Header) -> None:
        """Check one message to a client."""
        id = getattr(header, "id", None)
        if id is None:
            return
        asked = self.asked.get(id)
        assert asked is not None, "an answer to nobody's question"
        assert asked.peer == peer, "an answer to another client"
        assert not asked.ended, f"{type(header).__name__} after the end"
        match header:
            case Chunk():
                assert asked.leased, "a chunk of a request that waits"
                assert header.seq == asked.seq, "a gap, or a chunk twice"
                asked.seq += 1
            case Done() | Failed() | CacheState() | Reloaded():
                end = str(header.code) if isinstance(header, Failed) else "done"
                asked.end = end
                self.seen.add(f"{asked.what}:{end}")
                self.answered(peer, id)
                self._world.wishes.answered(id, end)
            case Accepted() if asked.what == "generate":
                assert (header.position == 0) == asked.leased, "told other than leased"
            case _:
                pass

    def shown(self, effect: SendSnapshot | SendMetrics | StartWatch) -> None:
        """A look is answered."""
        id = effect.header.id if isinstance(effect, StartWatch) else effect.id
        self.answered(effect.peer, id)

    def answered(self, peer: Peer, id: bytes) -> None:
        """Note a last answer."""
        asked = self.asked[id]
        assert asked.peer == peer, "an answer to another client"
        assert not asked.ended, "answered twice"
        asked.ended = True
        self.open.pop(id, None)

    def leased(self, id: bytes) -> None:
        """A worker got this request."""
        asked = self.asked.get(id)
        assert asked is not None, "a lease for nobody"
        assert not asked.ended, "a lease for a request that has ended"
        assert not asked.leased, "leased twice"
        asked.leased = True

    def open_questions(self) -> list[str]:
        """What waits for an answer, in words."""
        return [f"{asked.what} of {asked.peer.identity.hex()}" for asked in self.open.values()]

    # --- requests --------------------------------------------------------------------------------

    def generate(self) -> None:
        """Ask for a completion, at times twice with one id, at times of an unknown model."""
        known = self._chance.random() < 0.99
        model = self._chance.choices(MODELS, ASKED)[0] if known else "nobody"
        header = self.ask_for(model, self._chance.choice((None, None, 500, 20_000)))
        if self._chance.random() < 0.05 and header.id in self.open:
            self._send(self._chance.choice(self.peers), header, b"again")

    def ask_for(self, model: str, deadline_ms: int | None = None) -> Generate:
        """Ask for a completion of one model: taken in or refused, as its client's share is."""
        peer = self._chance.choice(self.peers)
        id = self._ask(peer, "generate")
        header = Generate(id=id, model=model, credit=4, deadline_ms=deadline_ms)
        self._world.wishes.called(model)
        within = self._within_its_share(peer, model)
        self._send(peer, header, b"prompt")
        if self.asked[id].end == "overloaded":
            assert not within, "refused, though it had less waiting than was left"
        elif not self.asked[id].ended:
            assert within, "given the room that was left for others"
        return header

    def client_reads(self) -> None:
        """Grant credit, rarely far too much."""
        id = self._one_running()
        if id is not None:
            much = self._chance.random() < 0.05
            chunks = 64 if much else self._chance.randrange(1, 8)
            self._send(self.asked[id].peer, AddCredit(id=id, chunks=chunks))

    def cancel(self) -> None:
        """Cancel something, ended or not, at times twice."""
        recent = [id for id in list(self.asked)[-RECENT:] if self.asked[id].what == "generate"]
        open = [id for id in recent if id in self.open]
        if recent:
            id = self._chance.choice(open if open and self._chance.random() < 0.7 else recent)
            for _ in range(self._chance.choice((1, 1, 2))):
                self._send(self.asked[id].peer, Cancel(id=id))

    def cancel_foreign(self) -> None:
        """Cancel another client's request: nothing may happen to it."""
        requests = self._world.state.requests
        if requests:
            id = self._chance.choice(list(requests))
            before = requests[id].phase
            self._send(THIEF, Cancel(id=id))
            assert requests[id].phase is before, "a stranger's cancel was obeyed"

    def send_garbage(self) -> None:
        """Send what cannot be read, at times with the id of a request."""
        id = self._one_running() if self._chance.random() < 0.5 else None
        peer = self._chance.choice(self.peers) if id is None else self.asked[id].peer
        code = ErrorCode.protocol
        self._world.give(ClientErred(peer=peer, code=code, message="garbage", id=id))

    # --- the owner -------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at the daemon in some way: nothing may change by that."""
        before = self._world.invariants.picture()
        id, model = self._ask(self.owner, "look"), self._chance.choice(MODELS)
        looks = (Status(id=id), Metrics(id=id), Logs(id=id, model=model), Subscribe(id=id))
        self._send(self.owner, self._chance.choice(looks))
        assert self._world.invariants.picture() == before, "looking changed something"

    def spawn(self) -> None:
        """Command a load."""
        model = self._chance.choice(MODELS)
        group = self._chance.choice((None, None, model, "g", "h", "a"))
        id = self._ask(self.owner, "spawn")
        self._world.wishes.called(model)
        if group is not None:
            self._world.wishes.grouped(model, group)
        self._send(self.owner, Spawn(id=id, model=model, group=group))

    def retire(self) -> None:
        """Command an unload."""
        model, now = self._chance.choice(MODELS), self._chance.random() < 0.4
        id = self._ask(self.owner, "retire")
        self._world.wishes.retiring(id, model)
        self._send(self.owner, Retire(id=id, model=model, now=now))

    def pin(self) -> None:
        """Pin a model, or let it go again."""
        model, pinned = self._chance.choice(MODELS), self._chance.random() < 0.3
        self._send(self.owner, Pin(id=self._ask(self.owner, "pin"), model=model, pinned=pinned))

    def ask_cache(self) -> None:
        """Ask for the state of a cache, or command to empty it."""
        model, kind = self._chance.choice(MODELS), self._chance.choice((ReadCache, ClearCache))
        self._send(self.owner, kind(id=self._ask(self.owner, "cache"), model=model))

    def cancel_command(self) -> None:
        """Wait no longer for a command."""
        own = [id for id, asked in self.open.items() if asked.peer == self.owner]
        if own:
            self._send(self.owner, Cancel(id=self._chance.choice(own)))

    def ask_reload(self, *, dry_run: bool) -> None:
        """Ask for the configuration to be read again, or what that would change."""
        id = self._ask(self.owner, "reload")
        self._send(self.owner, Reload(id=id, dry_run=dry_run))

    def ask_shutdown(self) -> None:
        """Command the daemon's end."""
        now = self._chance.random() < 0.5
        self._send(self.owner, Shutdown(id=self._ask(self.owner, "shutdown"), now=now))

    # --- connections -----------------------------------------------------------------------------

    def vanish(self) -> None:
        """Take a client away; nobody expects an answer for it any more."""
        index = self._chance.randrange(len(self.peers))
        peer, self.peers[index] = self.peers[index], self._new_peer()
        for id in [id for id, asked in self.open.items() if asked.peer == peer]:
            del self.open[id]
        self._world.give(ClientVanished(peer=peer))

    def overflow(self) -> None:
        """Have a client not read."""
        self._world.give(ClientOverflowed(peer=self._chance.choice(self.peers)))

    def _within_its_share(self, peer: Peer, model: str) -> bool:
        """Whether less of a client waits than there is room for, counted anew."""
        queued = [r for m in self._world.state.models.values() for r in m.queue.values()]
        of_model = [r for r in queued if r.model == model]
        return all(
            sum(r.peer == peer for r in waiting) < most - len(waiting)
            for waiting, most in (
                (of_model, LIMITS.queued_requests_per_model),
                (queued, LIMITS.queued_requests),
            )
        )

    def _one_running(self) -> bytes | None:
        ids = [id for id, asked in self.open.items() if asked.what == "generate"]
        return self._chance.choice(ids) if ids else None

    def _ask(self, peer: Peer, what: str) -> bytes:
        self._born += 1
        id = self._born.to_bytes(16, "big")
        self.asked[id] = self.open[id] = Asked(peer, what)
        return id

    def _new_peer(self, door: Literal["requests"] = "requests") -> Peer:
        self._born += 1
        return Peer(door, self._born.to_bytes(5, "big"))

    def _send(self, peer: Peer, header: Header, body: bytes = b"") -> None:
        self._world.give(ClientSent(peer=peer, header=header, body=body))
