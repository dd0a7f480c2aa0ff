"""A tokenizer folder for mlx-lm from the metadata of a GGUF file.

Only what the embedded model needs: byte-level BPE with the pre-tokenizer "smollm" (each digit
for itself, then byte level).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ...protocol.errors import DflashError, ErrorCode

_CONTROL = 3
"""GGUF's token type for what is never produced by ordinary text."""


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; raises DflashError(unsupported)."""
    kind = (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise DflashError(
            ErrorCode.unsupported,
            f"cannot convert a GGUF tokenizer of kind {kind}: only ('gpt2', 'smollm') is known",
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    types = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[int(metadata["tokenizer.ggml.bos_token_id"])],
        "eos_token": tokens[int(metadata["tokenizer.ggml.eos_token_id"])],
        "pad_token": tokens[int(metadata["tokenizer.ggml.padding_token_id"])],
        "unk_token": tokens[int(metadata["tokenizer.ggml.unknown_token_id"])],
        "additional_special_tokens": special,
        "add_bos_token": bool(metadata["tokenizer.ggml.add_bos_token"]),
        "add_prefix_space": bool(metadata["tokenizer.ggml.add_space_prefix"]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata["llama.context_length"]),
        "chat_template": metadata["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
