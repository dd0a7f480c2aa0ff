"""Two DFlash models live at once: a real daemon, two workers, and the proof of what they did.

Run it with ``make demo``. It ends with exit status 0 only if everything it claims was true;
``--json`` adds one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from columns import view
from evidence import Answer, Evidence, Leftovers

from dflashd.protocol import AsyncClient, Daemon, DflashError, Generation
from dflashd.protocol.messages import Accepted, ChatMessage, Event, SnapshotBody

MODELS = {"smollm2-135m": "smollm2-135m-dflash", "smollm2-135m-1l": "smollm2-135m-dflash-1l"}
"""Each model's name and its draft; the target of both is the embedded one."""

FIRST = {
    "smollm2-135m": "Write a Python function that returns the n-th Fibonacci number.",
    "smollm2-135m-1l": "Write a Python function that counts the vowels of a word.",
}
SECOND = "Now write a test for this function."

CONFIG = """
[daemon]
runtime_dir = "{folder}/run"
state_dir = "{folder}/state"
"""
MODEL_CONFIG = """
[models."{name}"]
target = "smollm2-135m"
draft = "{draft}"
"""

Conversation = dict[str, list[ChatMessage]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if all that is claimed was true."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="length of an answer")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    # A polite stop cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Directly below /tmp: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="dflashd-demo-", dir="/tmp") as folder:
        evidence, failed = None, 1
        try:
            evidence = asyncio.run(demonstrate(Path(folder), options.tokens))
        except* DflashError as errors:
            say("", "The demo failed:", *(f"  {error}" for error in leaves(errors)))
            say(*(f"  {line}" for line in last_log_lines(Path(folder))))
        except* KeyboardInterrupt:
            failed = 130
    if evidence is None:
        return failed
    say("", *evidence.table(), "", *evidence.verdicts())
    if options.json:
        seconds = round(time.monotonic() - started_s, 3)
        say(json.dumps({"ok": evidence.ok, "seconds": seconds, "models": evidence.models()}))
    return 0 if evidence.ok else 1


async def demonstrate(folder: Path, max_tokens: int) -> Evidence:
    """The whole story, from starting the daemon to looking for what it left behind."""
    config = folder / "dflashd.toml"
    models = "".join(MODEL_CONFIG.format(name=name, draft=draft) for name, draft in MODELS.items())
    config.write_text(CONFIG.format(folder=folder) + models)
    run_dir = folder / "run"
    with Daemon(config, runtime_dir=run_dir, log=folder / "daemon.log") as daemon:
        say(f"dflashd is up (pid {daemon.pid}). Loading two models into two workers:")
        async with AsyncClient(run_dir, timeout_s=60) as client:
            await spawn(client)
            before = await client.status()
            first, second, plain = await converse(client, max_tokens)
            after = await client.status()
            leftovers = Leftovers.watch(daemon.pid, run_dir)
            say("", "Retiring both models and stopping the daemon.")
            retired = await retire(client)
            await client.shutdown()
        await asyncio.to_thread(leftovers.wait)
    return Evidence(
        first=first,
        second=second,
        plain=plain,
        before=before,
        after=after,
        retired=retired,
        leftovers=leftovers,
    )


async def spawn(client: AsyncClient) -> None:
    """Load both models at the same time, and show how far each is."""
    screen = view(tuple(MODELS))

    def told(name: str, event: Event | Accepted) -> None:
        if isinstance(event, Event) and event.name == "progress":
            screen.note(name, f"{event.stage}: {event.done}/{event.total} {event.unit}")

    async with asyncio.TaskGroup() as group:
        for name in MODELS:
            group.create_task(client.spawn(name, lambda event, name=name: told(name, event)))
    for name in MODELS:
        screen.note(name, "ready")
    screen.close()


async def converse(
    client: AsyncClient, max_tokens: int
) -> tuple[dict[str, Answer], dict[str, Answer], dict[str, Answer]]:
    """Two questions to both models at once, then the first one again by plain decoding."""
    opening = {name: [ChatMessage(role="user", content=text)] for name, text in FIRST.items()}
    say("", "Both answer at the same time:")
    first = await ask(client, opening, max_tokens, "auto")
    followed = {
        name: [
            *opening[name],
            ChatMessage(role="assistant", content=first[name].text),
            ChatMessage(role="user", content=SECOND),
        ]
        for name in MODELS
    }
    say("", f"Asked again, with the same beginning: {SECOND}")
    second = await ask(client, followed, max_tokens, "auto")
    say("", "The first question again, by plain decoding:")
    plain = await ask(client, opening, max_tokens, "off")
    return first, second, plain


async def ask(
    client: AsyncClient,
    conversation: Conversation,
    max_tokens: int,
    speculation: Literal["auto", "off"],
) -> dict[str, Answer]:
    """Put both questions at once, and show both answers while they come."""
    screen = view(tuple(MODELS))
    async with asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(
                answer(
                    client.generate(
                        name,
                        messages=conversation[name],
                        max_tokens=max_tokens,
                        speculation=speculation,
                        temperature=0,
                    ),
                    partial(screen.add, name),
                )
            )
            for name in MODELS
        }
    screen.close()
    return {name: task.result() for name, task in tasks.items()}


async def answer(generation: Generation, show: Callable[[str], None]) -> Answer:
    """One answer, with the time at which each of its chunks came."""
    came_s: list[float] = []
    async for chunk in generation:
        came_s.append(time.monotonic())
        show(chunk.text)
    completion = await generation.wait()
    return Answer(text=completion.text, came_s=tuple(came_s), stats=completion.stats)


async def retire(client: AsyncClient) -> SnapshotBody:
    """Unload both; the daemon's state afterwards."""
    async with asyncio.TaskGroup() as group:
        for name in MODELS:
            group.create_task(client.retire(name))
    return await client.status()


def leaves(errors: BaseExceptionGroup[DflashError]) -> list[DflashError]:
    """The errors inside, however deep the task groups."""
    found: list[DflashError] = []
    for error in errors.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def last_log_lines(folder: Path) -> list[str]:
    """What the daemon and its workers said last, for the person whose demo failed."""
    logs = [folder / "daemon.log", *sorted((folder / "state" / "logs").glob("*.log"))]
    return [
        f"{log.name}: {line}"
        for log in logs
        if log.exists()
        for line in log.read_text(errors="replace").splitlines()[-10:]
    ]


def say(*lines: str) -> None:
    """Lines for the person who watches."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
