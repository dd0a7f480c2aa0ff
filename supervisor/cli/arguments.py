"""The arguments of each command; nothing here imports what a command needs to run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol

from .argument_values import lengths, positive, seconds


class Commands(Protocol):
    """What ``add_subparsers`` returns, as far as we use it."""

    def add_parser(
        self, name: str, *, help: str, add_help: bool = True, prefix_chars: str = "-"
    ) -> argparse.ArgumentParser:
        """Add one command."""
        ...


def add_json(command: argparse.ArgumentParser, words: str = "print one JSON object") -> None:
    """What docs/commands.md documents, instead of words for a person."""
    command.add_argument("--json", action="store_true", help=words)


def add_lifecycle(commands: Commands) -> None:
    """Spawn, retire, pin, unpin, shutdown."""
    spawn = commands.add_parser("spawn", help="load a model now, even after it was given up")
    spawn.add_argument("model", metavar="MODEL")
    words = "move it into this group's worker first (its own name: a worker of its own)"
    spawn.add_argument("--group", metavar="NAME", help=words)
    retire = commands.add_parser("retire", help="unload a model when its requests are done")
    retire.add_argument("model", metavar="MODEL")
    retire.add_argument("--now", action="store_true", help="fail its running requests")
    for name, words in (
        ("pin", "never evict a model to make room, nor unload it for being idle"),
        ("unpin", "let a pinned model go again when room is needed"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("model", metavar="MODEL")
        add_json(command)
    shutdown = commands.add_parser("shutdown", help="stop the daemon")
    shutdown.add_argument("--now", action="store_true", help="do not wait for running requests")
    for command in (spawn, retire, shutdown):
        add_json(command)


def add_config(commands: Commands) -> None:
    """Reload, config check, config schema."""
    reload = commands.add_parser("reload", help="have the daemon read its configuration again")
    reload.add_argument("--dry-run", action="store_true", help="only say what would change")
    config = commands.add_parser(
        "config", help="check a configuration file, or describe the format"
    )
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="say whether a file can be used; needs no daemon")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument(
        "--diff", action="store_true", help="ask the running daemon what the file would change"
    )
    actions.add_parser("schema", help="print the format's JSON Schema")
    for command in (reload, check):
        add_json(command)


def add_looks(commands: Commands) -> None:
    """Status, models, top."""
    for name, words in (
        ("status", "show workers, models and queues"),
        ("models", "list the configured models"),
    ):
        command = commands.add_parser(name, help=words)
        add_json(command)
    top = commands.add_parser("top", help="watch models, memory, speed and queues; q leaves")
    top.add_argument(
        "-d", "--delay", type=seconds, default=1.0, metavar="S", help="between two looks (1)"
    )
    top.add_argument(
        "-n", "--frames", type=positive, metavar="N", help="leave after N (in a pipe: 1)"
    )
    add_json(top, "print one JSON object a look")


def add_watch(commands: Commands) -> None:
    """Events, logs, metrics."""
    events = commands.add_parser("events", help="show what the daemon did lately, and why")
    events.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    events.add_argument(
        "-n", "--lines", type=int, metavar="N", help="the last N (default: all that are kept)"
    )
    logs = commands.add_parser("logs", help="show what a model's worker has written")
    logs.add_argument("model", metavar="MODEL")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what it writes")
    logs.add_argument(
        "-n", "--lines", type=int, default=100, metavar="N", help="the last N lines (default 100)"
    )
    metrics = commands.add_parser("metrics", help="show counts, queues and durations")
    for command in (events, logs, metrics):
        add_json(command, "print JSON objects, one a line")


def add_cache(commands: Commands) -> None:
    """Cache, with or without a model, and cache clear."""
    cache = commands.add_parser("cache", help="show the loaded models' prefix caches, or empty one")
    cache.add_argument(
        "words",
        nargs="*",
        metavar="[MODEL | clear MODEL]",
        help="one model's cache in full; 'clear MODEL' empties it, disk included",
    )
    add_json(cache)


def add_generate(commands: Commands) -> None:
    """Generate, chat."""
    generate = commands.add_parser("generate", help="answer a prompt")
    generate.add_argument("model", metavar="MODEL")
    generate.add_argument("prompt", metavar="PROMPT", help="the text; - reads standard input")
    generate.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it is, without the model's chat template",
    )
    generate.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the text while it is made (default)",
    )
    add_json(generate, "print one JSON object: text, tokens, stats")
    chat = commands.add_parser("chat", help="talk with a model; /exit leaves")
    chat.add_argument("model", metavar="MODEL")
    chat.add_argument("--system", metavar="TEXT", help="what the model is told first")
    add_json(chat, "print each answer as one JSON object")
    for command in (generate, chat):
        add_sampling(command)


def add_sampling(command: argparse.ArgumentParser) -> None:
    """What shapes the output; left out: the model's configured default."""
    command.add_argument("--max-tokens", type=int, metavar="N")
    command.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    command.add_argument("--top-p", type=float, metavar="P")
    command.add_argument("--top-k", type=int, metavar="K")
    command.add_argument("--min-p", type=float, metavar="P")
    command.add_argument("--seed", type=int, metavar="N")
    command.add_argument(
        "--speculation",
        choices=("auto", "strict", "off"),
        default="auto",
        help="off: plain decoding; strict: an error where a draft cannot be used",
    )
    command.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end there; may be repeated"
    )


def add_bench(commands: Commands) -> None:
    """Bench."""
    bench = commands.add_parser(
        "bench", help="measure a model plainly and with blocks of several lengths"
    )
    bench.add_argument("model", metavar="MODEL")
    bench.add_argument(
        "--blocks", type=lengths, metavar="N,N", help="block lengths (default: 2, 4, 8 … )"
    )
    bench.add_argument(
        "--tokens", type=positive, default=96, metavar="N", help="of each answer (96)"
    )
    bench.add_argument(
        "--rounds", type=positive, default=3, metavar="N", help="each way so often (3)"
    )
    bench.add_argument(
        "--prompt", action="append", metavar="TEXT", help="instead of ours; may be repeated"
    )
    add_json(bench)


def add_service(commands: Commands) -> None:
    """Service install, uninstall, status, print."""
    service = commands.add_parser("service", help="run the daemon under systemd or launchd")
    actions = service.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, words in (
        ("install", "write its unit, start it, and have it started from now on"),
        ("print", "show the unit that install would write"),
        ("uninstall", "stop it and remove its unit"),
        ("status", "show what the service manager says of it"),
    ):
        action = actions.add_parser(name, help=words)
        action.add_argument("--system", action="store_true", help="the machine's, not the user's")
        add_json(action)
        if name in ("install", "print"):
            action.add_argument("--config", type=Path, required=True, metavar="FILE")


def add_keys(commands: Commands) -> None:
    """Keys new, allow, revoke, list."""
    keys = commands.add_parser("keys", help="say who may use the daemon over tcp and HTTP")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key and allow it")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--out", type=Path, metavar="FILE", help="key file (default: NAME.key)")
    words = "public key of a daemon elsewhere, whose owner allows the new key then"
    new.add_argument("--server", metavar="PUBLIC", help=words)
    allow = actions.add_parser("allow", help="allow a key that was made elsewhere")
    allow.add_argument("name", metavar="NAME")
    allow.add_argument("public", metavar="PUBLIC")
    for action in (new, allow):
        words = "request (default): generations only; control: also control the daemon"
        action.add_argument("--role", choices=("request", "control"), default="request", help=words)
    revoke = actions.add_parser("revoke", help="allow a key no more; its connections are cut")
    revoke.add_argument("name", metavar="NAME")
    for action in (new, revoke):
        action.add_argument("--http", action="store_true", help="an API key for the HTTP gateway")
    show = actions.add_parser("list", help="list the keys that are allowed")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    for action in (new, allow, revoke, show):
        words = "the daemon's configuration, where it names a state_dir"
        action.add_argument("--config", type=Path, metavar="FILE", help=words)


def add_machine(commands: Commands) -> None:
    """Commands about this machine, which need no daemon."""
    init = commands.add_parser("init", help="write a configuration for the models on this machine")
    init.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("dflashd.toml"),
        metavar="FILE",
        help="where to (default: dflashd.toml; -: standard output)",
    )
    init.add_argument("--force", action="store_true", help="replace a file that is there")
    doctor = commands.add_parser(
        "doctor", help="say what this machine computes with, and what is wrong"
    )
    for command in (init, doctor):
        add_json(command)
    completion = commands.add_parser("completion", help="print what completes our words in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    # Its options are its own: they are another program's.
    pull = commands.add_parser(
        "pull", help="fetch a model before it is needed", add_help=False, prefix_chars="\0"
    )
    pull.add_argument("rest", nargs=argparse.REMAINDER)
