"""The simulated configuration file: it changes, is asked for, and is read at its own pace."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import structs

from dflashd.protocol.messages import Assign, Load, ReloadBody
from dflashd.supervisor.config.configuration import Config, DaemonSection
from dflashd.supervisor.config.differences import in_effect, plan
from dflashd.supervisor.config.problems import problems_between
from dflashd.supervisor.core.effects import AdoptConfig, ReadConfig, SendToWorker
from dflashd.supervisor.core.events import ConfigRead, ConfigRefused, ReloadAsked
from dflashd.supervisor.core.home import configured

from .setting import LIMITS, sections

if TYPE_CHECKING:
    from .world import World

EDITS = ("drop", "back", "back", "worker", "group", "own", "engine")


class Configurations:
    """The file as it is, and the configuration as the daemon has it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        limits = structs.asdict(LIMITS)
        self.current = Config(daemon=DaemonSection(**limits), models=sections())
        self._file = self.current
        self._loaded: dict[tuple[str, int, str], object] = {}
        self._readings: deque[tuple[int, Config | None]] = deque()
        world.wishes.configured(None, self.current)

    # --- what the daemon does --------------------------------------------------------------------

    def begin(self, effect: ReadConfig) -> None:
        """It reads what is there now; at times that is broken, or hangs for long."""
        assert self._world.state.last_reading == effect.n, "two readings at once"
        broken = self._chance.random() < 0.1
        self._readings.append((effect.n, None if broken else self._file))

    def obey(self, effect: ReadConfig | AdoptConfig) -> None:
        """The daemon wants to read its configuration, or has changed to it."""
        if isinstance(effect, ReadConfig):
            self.begin(effect)
        else:
            self.adopt(effect)

    def adopt(self, effect: AdoptConfig) -> None:
        """What it changed to must be what it read last."""
        before, self.current = self.current, in_effect(self.current, effect.config)
        self._world.wishes.configured(before, self.current)

    def told(self, body: object) -> None:
        """An answer lists every model of before and after, once."""
        assert isinstance(body, ReloadBody)
        names = [model.name for model in body.models]
        assert len(names) == len(set(names)), "a model told of twice"

    def ordered(self, effect: SendToWorker) -> None:
        """Work goes to a worker that has loaded its model as it is configured now."""
        match effect.header:
            case Load(model=name):
                self._loaded[effect.worker, effect.epoch, name] = effect.body
            case Assign(model=name):
                wanted = self._world.state.models[name].settings.load_body
                found = self._loaded[effect.worker, effect.epoch, name]
                assert found == wanted, "work for settings of before"
            case _:
                pass

    # --- what happens ----------------------------------------------------------------------------

    def edit(self) -> None:
        """Somebody writes the file: a model goes, comes back, changes, moves to another group."""
        models = dict(self._file.models)
        every = sections(later=True)
        name = self._chance.choice(list(every))
        match self._chance.choice(EDITS):
            case "drop":
                models.pop(name, None)
            case "back":
                models.setdefault(name, every[name])
            case "worker" if name in models:
                tokens = self._chance.randrange(1, 4)
                preload = self._chance.random() < 0.3
                models[name] = structs.replace(models[name], max_tokens=tokens, preload=preload)
            case "group" if name in models:
                group = self._chance.choice((None, "g", "h", "a"))
                models[name] = structs.replace(models[name], group=group)
            case "own" if name in models:
                pinned, preload = self._chance.random() < 0.3, self._chance.random() < 0.3
                models[name] = structs.replace(models[name], pinned=pinned, preload=preload)
            case "engine" if name in models:
                backend = self._chance.choice(("dflash", "dflash", "other"))
                placement = self._chance.choice(("auto", "auto", "strict"))
                models[name] = structs.replace(models[name], backend=backend, placement=placement)
            case _:
                pass
        file = structs.replace(self._file, models=models)
        if not any(problems_between(file)):
            self._file = file

    def reload(self) -> None:
        """The owner, or a signal, asks for it."""
        dry_run = self._chance.random() < 0.3
        if self._chance.random() < 0.3:
            self._world.give(ReloadAsked(cause="signal"))
        else:
            self._world.clients.ask_reload(dry_run=dry_run)

    def finish_reading(self) -> None:
        """The reading ends, at times long after the daemon gave it up, and once more."""
        if not self._readings:
            return
        n, config = self._readings.popleft()
        if config is None:
            self._world.give(ConfigRefused(n=n, reason="broken"))
        else:
            found = plan(self.current, config)
            self._world.give(ConfigRead(n=n, source="file", config=config, plan=found))

    def read_stale(self) -> None:
        """A reading nobody waits for any more comes to its end."""
        n = self._world.state.last_reading - 1
        self._world.give(ConfigRefused(n=n, reason="late"))

    def check(self) -> None:
        """What is configured is what the daemon has; only what leaves may be there besides."""
        s = self._world.state
        kept = {name: model.settings for name, model in s.models.items() if not model.removed}
        assert kept == self.current.models, "the tables are not the configuration"
        for model in s.models.values():
            leaves = model.name in s.changing
            assert leaves or not model.removed, "a removed model that never goes"
            at_home = s.worker_of(model).home == configured(model.name, model.settings)
            assert leaves or model.apart or at_home, "a model in a slot it was not configured for"
