"""A byte-level vocabulary small enough to write down: all bytes, a few merges, ChatML's control tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ("<", "|"))


def write_tokenizer(directory: Path, *, chat_template: str | None = None) -> Path:
    """A Hugging Face tokenizer directory."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, *("".join(pair) for pair in MERGES)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    split = Split(Regex(r"\s+|\S+"), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": chat_template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
