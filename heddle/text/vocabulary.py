"""Byte-level BPE vocabularies: from a GGUF file or a Hugging Face directory, to one common form.

Nothing here knows of chats. Only byte-level BPE is supported, where every token is a fixed string of
bytes and decoding is their concatenation; anything else is a ``ConfigError``, never a near miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from heddle.errors import ConfigError
from heddle.text.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, load_gguf_vocabulary
from heddle.types import Json


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a text tokenizer is made of."""

    bpe: Tokenizer
    """Encodes plain text; control tokens in the text are *not* recognised."""
    token_bytes: list[bytes]
    """The bytes of each token, indexed by id."""
    control_ids: Mapping[str, int]
    gap_id: int
    """Stands where a byte has no token, so that nothing merges across it; never a token, to be dropped."""
    bos_token: str
    eos_token: str
    chat_template: str | None


def load_vocabulary(path: Path) -> Vocabulary:
    """From a ``.gguf`` file, a ``tokenizer.json``, or a directory with one. Raises ``ConfigError``."""
    if path.suffix == ".gguf":
        return _from_gguf(path)
    return _from_huggingface(path.parent if path.name == "tokenizer.json" else path)


# --------------------------------------------------------------------------------------------- GGUF

_GAP = "\0"
"""Outside of the byte alphabet, so no text and no merge can make it."""

_VERBATIM = (UNKNOWN, CONTROL, USER_DEFINED)
"""Types of tokens that are written as they read, not in the byte alphabet."""

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
_ANY_CASE_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"


def _cl100k(digits: str) -> str:
    """The family of rules after GPT-4's; its members differ in how they group digits."""
    words = rf"{_ANY_CASE_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    return words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _SplitRule:
    """Patterns applied one after the other; what a pattern matches, and what it leaves, is split apart."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A piece that is in the vocabulary is taken as it stands, without merging."""

    def pre_tokenizer(self) -> PreTokenizer:
        splits = [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_SPLIT_RULES: Mapping[str, _SplitRule] = {
    "default": _SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _SplitRule((_GPT2,)),
    "smollm": _SplitRule((r"\p{N}", _GPT2)),
    "qwen2": _SplitRule((_cl100k(r"\p{N}"),)),
    "llama-bpe": _SplitRule((_cl100k(r"\p{N}{1,3}"),), whole_words=True),
}
"""By the names that GGUF files give them."""


def _from_gguf(path: Path) -> Vocabulary:
    raw = load_gguf_vocabulary(path)
    rule = _SPLIT_RULES.get(raw.pre)
    if rule is None:
        raise ConfigError(
            f"{path} splits text by the rule {raw.pre!r}, which is not supported (only "
            f"{', '.join(_SPLIT_RULES)}): choose another model, or use the model's tokenizer.json"
        )
    ids = {token: token_id for token_id, token in enumerate(raw.tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in raw.merges)]
    gap_id = len(raw.tokens)
    with_gap = ids | {_GAP: gap_id}
    try:
        bpe = Tokenizer(
            models.BPE(vocab=with_gap, merges=merges, unk_token=_GAP, ignore_merges=rule.whole_words)
        )
    except Exception as exc:  # tokenizers raises bare Exception for everything
        raise ConfigError(f"{path} has an inconsistent vocabulary: {exc}") from exc
    bpe.pre_tokenizer = rule.pre_tokenizer()
    kinds = list(zip(raw.tokens, raw.token_types, strict=True))
    bpe.add_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == USER_DEFINED])
    return Vocabulary(
        bpe=bpe,
        token_bytes=[t.encode() if kind in _VERBATIM else _bytes_of(t) for t, kind in kinds],
        control_ids={t: ids[t] for t, kind in kinds if kind in (CONTROL, UNKNOWN)},
        gap_id=gap_id,
        bos_token="" if raw.bos_id is None else raw.tokens[raw.bos_id],
        eos_token=raw.tokens[raw.eos_id],
        chat_template=raw.chat_template,
    )


# ------------------------------------------------------------------------------------- Hugging Face


def _from_huggingface(directory: Path) -> Vocabulary:
    text = _read(directory / "tokenizer.json")
    description = _json_object(text, directory / "tokenizer.json")
    if '"ByteLevel"' not in orjson.dumps(description.get("decoder")).decode():
        raise ConfigError(f"{directory} has no byte-level vocabulary: choose another model")
    try:
        bpe = Tokenizer.from_str(text)
    except Exception as exc:  # tokenizers raises bare Exception for everything
        raise ConfigError(f"cannot read {directory / 'tokenizer.json'}: {exc}") from exc
    bpe.encode_special_tokens = True
    bpe.no_truncation()
    bpe.no_padding()
    added = bpe.get_added_tokens_decoder()
    if stripping := [t.content for t in added.values() if t.lstrip or t.rstrip or t.single_word]:
        raise ConfigError(f"{directory}: tokens that swallow whitespace are not supported: {stripping}")
    token_bytes = [b""] * (max(bpe.get_vocab().values()) + 1)
    for token, token_id in bpe.get_vocab().items():
        token_bytes[token_id] = token.encode() if token_id in added else _bytes_of(token)
    config = _read_tokenizer_config(directory)
    return Vocabulary(
        bpe=bpe,
        token_bytes=token_bytes,
        control_ids={t.content: token_id for token_id, t in added.items() if t.special},
        gap_id=len(token_bytes),
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
        chat_template=_chat_template(directory, config),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc


def _json_object(text: str, path: Path) -> dict[str, Json]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no JSON object")
    return value


def _read_tokenizer_config(directory: Path) -> dict[str, Json]:
    path = directory / "tokenizer_config.json"
    return _json_object(_read(path), path) if path.exists() else {}


def _chat_template(directory: Path, config: Mapping[str, Json]) -> str | None:
    """From its own file, or from the configuration: one template, or a list with one for tools."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return _read(path)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {str(t["name"]): t["template"] for t in template if isinstance(t, dict)}
        template = named.get("tool_use", named.get("default"))
    return template if isinstance(template, str) else None


def _token_text(token: Json) -> str:
    """A token is written as a string, or as an object with its ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


# ------------------------------------------------------------------------------------------- common


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()  # a token outside of the alphabet stands for itself
