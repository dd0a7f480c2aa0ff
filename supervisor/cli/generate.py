"""``dflashctl generate``: one question, one answer."""

from __future__ import annotations

import argparse
import sys
from typing import final

from ...protocol.ask import GenerateOptions
from ...protocol.errors import DflashError
from ...protocol.messages import DoneBody
from ...protocol.sync import Generation
from ..exit_statuses import EXIT_INTERRUPTED, EXIT_OK
from .connection import connected
from .looks import write_json
from .screen import ProgressLine, shown


def generate(options: argparse.Namespace) -> int:
    """Answer a prompt, or with ``--raw`` continue it; Ctrl-C stops it in the worker too."""
    prompt: str = sys.stdin.read() if options.prompt == "-" else options.prompt
    asked = sampling_of(options)
    if not options.raw:
        asked["messages"] = [{"role": "user", "content": prompt}]
    progress = ProgressLine()
    with connected(options) as client:
        generation = client.generate(
            options.model, prompt if options.raw else None, on_event=progress, **asked
        )
        try:
            if options.json or not options.stream:
                write_whole(generation, as_json=options.json)
            else:
                write_stream(generation)
        except KeyboardInterrupt:
            generation.cancel()
            sys.stdout.write("\n")
            return EXIT_INTERRUPTED
        finally:
            progress.clear()
        if generation.stats is not None and sys.stderr.isatty():
            sys.stderr.write(f"[{summary(generation.stats)}]\n")
    return EXIT_OK


def sampling_of(options: argparse.Namespace) -> GenerateOptions:
    """The options that shape the output."""
    return {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop,
        "speculation": options.speculation,
    }


@final
class AnswerText:
    """The text of an answer, printed as it comes; ``text`` is what came so far."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, generation: Generation) -> None:
        """Print until the end. What is said of an answer that fails begins a line."""
        try:
            for chunk in generation:
                self.text += chunk.text
                sys.stdout.write(shown(chunk.text))
                sys.stdout.flush()
        except DflashError:
            if self.text and not self.text.endswith("\n"):
                sys.stdout.write("\n")
                sys.stdout.flush()
            raise


def write_stream(generation: Generation) -> None:
    """Print the answer as it comes, a line break at the end."""
    answer = AnswerText()
    answer.write(generation)
    if not answer.text.endswith("\n"):
        sys.stdout.write("\n")


def write_whole(generation: Generation, *, as_json: bool) -> None:
    """Print the answer when it is complete."""
    completion = generation.wait()
    if as_json:
        write_json(completion)
    else:
        sys.stdout.write(shown(completion.text) + "\n" * (not completion.text.endswith("\n")))


def summary(stats: DoneBody) -> str:
    """What an answer tells about itself, in one line."""
    seconds = stats.decode_ms / 1000
    rate = f", {stats.generated_tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    engine = stats.engine if stats.engine == "dflash" else f"plain ({stats.engine_reason})"
    return (
        f"{engine}, {stats.generated_tokens} tokens{rate}, "
        f"acceptance {stats.acceptance_length_tokens:.2f}, "
        f"first token after {stats.ttft_ms / 1000:.2f} s, ended by {stats.finish_reason}"
    )
