"""Tokenizers from GGUF files, on small files written here."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import pytest
from small_vocabulary import CONTROL, MERGES
from tokenizers.pre_tokenizers import ByteLevel

from heddle.errors import ConfigError
from heddle.text.tokenizer import load_tokenizer

WITHOUT_TOKEN = b"\xf1"
"""A byte that this vocabulary cannot write, as happens to rare bytes in real ones."""


def write_gguf(path: Path, *, pre: str = "smollm", model: str = "gpt2", end: int = 1) -> Path:
    """A file with metadata and no tensors; ``end`` is the end of sequence among the control tokens."""
    alphabet = [
        letter for letter in sorted(ByteLevel.alphabet()) if letter != WITHOUT_TOKEN.decode("latin-1")
    ]
    tokens = [*CONTROL, *alphabet, *("".join(pair) for pair in MERGES), "<tool_call>"]
    kinds = [gguf.TokenType.CONTROL] * len(CONTROL)
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(CONTROL) - 1) + [gguf.TokenType.USER_DEFINED]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "default", "qwen2", "llama-bpe"])
def test_text_survives_every_rule_of_splitting(tmp_path: Path, pre: str) -> None:
    """Words, digits, spaces and control tokens come back."""
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf", pre=pre))
    text = "hello  12345 don't é漢😀\n\n <|im_end|><tool_call>!?"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.end_of_turn_id == CONTROL.index("<|im_end|>")


def test_merges_and_added_tokens_are_used(tmp_path: Path) -> None:
    """``hello`` is one token, and so is a user-defined one, even in plain text."""
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf"))
    ids = tokenizer.encode_plain("hello<tool_call>hello")
    assert [tokenizer.decode([i]) for i in ids] == ["hello", "<tool_call>", "hello"]


def test_nothing_merges_across_a_byte_without_token(tmp_path: Path) -> None:
    """The byte is lost, as in the engine, but its neighbours stay apart."""
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf"))
    ids = tokenizer.encode("\U00040000")
    assert "\U00040000".encode()[:1] == WITHOUT_TOKEN
    assert len(ids) == 3
    assert tokenizer.vocabulary_size not in ids


def test_the_vocabulary_is_kept_beside_the_model_until_the_model_changes(tmp_path: Path) -> None:
    """Reading a real file takes seconds; a changed file is read again."""
    path = write_gguf(tmp_path / "model.gguf", end=1)
    beside = tmp_path / "model.gguf.vocabulary.json"
    first = load_tokenizer(path)
    kept = beside.read_bytes()
    assert load_tokenizer(path).encode("hello") == first.encode("hello")
    assert beside.read_bytes() == kept
    write_gguf(path, pre="qwen2")
    os.utime(path, ns=(1, 1))
    load_tokenizer(path)
    assert beside.read_bytes() != kept


def test_a_spoilt_copy_is_made_anew(tmp_path: Path) -> None:
    """It is a cache: whatever is wrong with it, the model is the truth."""
    path = write_gguf(tmp_path / "model.gguf")
    beside = tmp_path / "model.gguf.vocabulary.json"
    beside.write_bytes(b'{"size": 3}')
    load_tokenizer(path)
    assert b'"hello"' in beside.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "model.gguf.vocabulary.json"]


@pytest.mark.parametrize(
    ("pre", "model", "message"),
    [("chatglm-bpe", "gpt2", "rule 'chatglm-bpe'.*tokenizer.json"), ("default", "llama", "byte-level")],
)
def test_what_is_not_supported_is_a_config_error(tmp_path: Path, pre: str, model: str, message: str) -> None:
    """It says what to do instead of tokenising nearly right."""
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(write_gguf(tmp_path / "model.gguf", pre=pre, model=model))
