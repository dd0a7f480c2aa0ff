"""Two DFlash models inside this process: loaded, asked from two threads, changed, unloaded.

An application that wants the models in processes of their own uses dflashd.protocol.Daemon.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from dflashd.worker import Host

TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 64


def ask(host: Host, model: str, question: str) -> str:
    """One answer; leaving the loop early would cancel it."""
    messages = [{"role": "user", "content": question}]
    answer = host.generate(model, messages=messages, max_tokens=TOKENS, deadline_s=120)
    for chunk in answer:
        print(f"  {model}: {chunk.text!r}")
    whole = answer.wait()
    return f"{model}, {whole.stats.acceptance_length_tokens:.2f} tokens a cycle: {whole.text!r}"


with Host() as host:
    host.load("small", "smollm2-135m", "smollm2-135m-dflash")
    other = host.load("other", "smollm2-135m", "smollm2-135m-dflash-1l")
    print(f"both models share {other.shared_bytes / 1e6:.0f} MB of weights")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(ask, host, "small", "Why is the sky blue?")
        second = threads.submit(ask, host, "other", "Write a Python function.")
        print(first.result(), second.result(), sep="\n")
    host.load("other", "smollm2-135m", "smollm2-135m-dflash", block_tokens=4)
    print(ask(host, "other", "What is the capital of Portugal?"))
    host.unload("small")
    print("left:", *(model.name for model in host.statistics().models))
