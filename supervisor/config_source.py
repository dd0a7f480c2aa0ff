"""Where the configuration comes from: the file it was read from, and reading that again."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import final

from ..protocol.codec import decode_body
from ..protocol.errors import DflashError
from ..protocol.messages import ConfigBody
from .config.configuration import Config
from .config.differences import in_effect, plan
from .config.file import load, parse
from .core.effects import ReadConfig
from .core.events import ConfigRead, ConfigRefused
from .detached import detached
from .errors import ConfigError
from .file_watch import FileWatch
from .logs.log import line, log

NO_FILE = "the daemon was started without --config: there is no file to read again"

Answer = ConfigRead | ConfigRefused


@final
class ConfigSource:
    """The configuration in effect, and its file if there is one. Raises ConfigError.

    A file is read, and watched, by threads which nobody waits for: a file system that hangs must
    not stop the daemon, and a long file must not hold up its streams.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None else path.absolute()
        self._watch = FileWatch(self._path)
        self._is_looked_at = False
        self.problem = ""
        """Why the file as it is now is not in effect; empty if it is, or was not read again."""
        self.current: Config = Config() if self._path is None else load(self._path)

    def look(self, changed: Callable[[], None]) -> None:
        """Begin to see whether the file is another one than was read, and is not being written.

        ``changed`` is called in the loop if so. One look at a time.
        """

        def end(is_another: bool) -> None:  # noqa: FBT001 (what a look answers)
            self._is_looked_at = False
            if is_another:
                changed()

        if self.current.daemon.watch_config and not self._is_looked_at:
            self._is_looked_at = True
            detached("watch-config", self._watch.has_settled_on_another, end)

    def adopt(self, config: Config) -> None:
        """Put a configuration into effect, except for what needs a restart."""
        self.current = in_effect(self.current, config)

    def read(self, question: ReadConfig, deliver: Callable[[Answer], None]) -> None:
        """Read the file, or the text that is given in its place; ``deliver`` gets the outcome."""
        current = self.current
        is_to_be_in_effect = not (question.dry_run or question.body)

        def work() -> Answer:
            if is_to_be_in_effect:
                self._watch.read_now()
            return self._answer(question, current)

        def end(answer: Answer) -> None:
            if is_to_be_in_effect and self._path is not None:
                self.problem = _problem(self._path, answer)
            deliver(answer)

        detached("read-config", work, end)

    def _answer(self, question: ReadConfig, current: Config) -> Answer:
        try:
            source, config = self._given(question.body) if question.body else self._file()
            found = plan(current, config)
        except ConfigError as error:
            return ConfigRefused(n=question.n, reason=str(error))
        except DflashError as error:
            return ConfigRefused(n=question.n, reason=error.message)
        except Exception:  # noqa: BLE001 (the border of a thread: whoever asked hears of it)
            log.exception(line("internal_error", cause="read_config"))
            return ConfigRefused(n=question.n, reason="reading it went wrong: see the daemon's log")
        return ConfigRead(n=question.n, source=source, config=config, plan=found)

    def _given(self, body: bytes) -> tuple[str, Config]:
        given = decode_body(ConfigBody, body)
        config = parse(given.text, source=given.source, base_dir=Path(given.base_dir))
        return given.source, config

    def _file(self) -> tuple[str, Config]:
        path = self._path
        if path is None:
            raise ConfigError(NO_FILE)
        try:
            is_regular = stat.S_ISREG(path.stat().st_mode)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        if not is_regular:  # a pipe is empty the second time, and may block
            raise ConfigError(f"{path} is no regular file, so it cannot be read a second time")
        return str(path), load(path)


def _problem(path: Path, answer: Answer) -> str:
    if not isinstance(answer, ConfigRefused):
        return ""
    why = answer.reason.splitlines()[0]
    return f"{path} is refused, what was read before stays in effect: {why}"
