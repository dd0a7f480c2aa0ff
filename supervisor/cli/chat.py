"""``dflashctl chat``: a conversation that is kept until it is left."""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import import_module

from ...protocol.errors import DflashError, ErrorCode
from ...protocol.messages import ChatMessage
from ...protocol.sync import Client, Generation
from ..exit_statuses import EXIT_OK
from .connection import connected
from .exits import sentence_of
from .generate import AnswerText, sampling_of
from .looks import write_json
from .screen import ProgressLine

LEAVE = ("/exit", "/quit")


def chat(options: argparse.Namespace) -> int:
    """Talk until /exit or the end of input; Ctrl-C stops an answer, not the conversation."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import_module("readline")  # input() then edits lines and remembers them
        sys.stderr.write(f"Talking with {options.model}. /exit leaves, Ctrl-C stops an answer.\n")
    turns: list[ChatMessage] = []
    if options.system:
        turns.append(ChatMessage(role="system", content=options.system))
    with connected(options) as client:
        while (said := ask()) is not None:
            if said.strip():
                turns.append(ChatMessage(role="user", content=said))
                answer = answered(client, options, turns)
                if answer:
                    turns.append(ChatMessage(role="assistant", content=answer))
                else:
                    turns.pop()
    return EXIT_OK


def ask() -> str | None:
    """The next thing the person says; None when they leave."""
    try:
        said = input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        sys.stderr.write("\n(/exit or Ctrl-D leaves)\n")
        return ""
    return None if said.strip() in LEAVE else said


def answered(client: Client, options: argparse.Namespace, turns: list[ChatMessage]) -> str:
    """Print the model's answer; what was said of it until it ended or was stopped."""
    progress = ProgressLine()
    sampling = sampling_of(options)
    sampling["messages"] = turns
    generation = client.generate(options.model, on_event=progress, **sampling)
    if options.json:
        return whole(generation, progress)
    answer = AnswerText()
    try:
        answer.write(generation)
    except KeyboardInterrupt:
        generation.cancel()
        sys.stderr.write("\n(stopped)")
    except DflashError as error:
        if error.code in (ErrorCode.not_found, ErrorCode.shutting_down) or not sys.stdin.isatty():
            raise  # no further answer can be had here, or nobody is there to ask again
        progress.clear()
        sys.stderr.write(f"dflashctl: {sentence_of(error)}\n")
    finally:
        progress.clear()
    sys.stdout.write("\n")
    sys.stdout.flush()
    return answer.text


def whole(generation: Generation, progress: ProgressLine) -> str:
    """An answer as one JSON object on a line; an error ends a conversation between programs."""
    try:
        completion = generation.wait()
    finally:
        progress.clear()
    write_json(completion)
    sys.stdout.flush()
    return completion.text
