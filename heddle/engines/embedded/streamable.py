"""A copy of a GGUF file whose tokens can all be streamed, and whose end of turn is unambiguous.

llama.cpp's server is made for text: while the text generated so far ends inside a UTF-8 character, it
holds back the token *and never reports it*, neither its id nor its probability. Emoji and many
mathematical signs are two or three tokens in a byte-level vocabulary, so ids would be lost, and a
trajectory with them is worthless for training.

What the server withholds it decides by the text of the token. Heddle never reads that text, so the copy
marks every token that ends inside a character as *unused*: such a token has no text, and is reported
like any other. A consequence: a grammar cannot choose a token without text, so constrained output
holds only characters that are single tokens.

And where the file does not say which token ends a turn, the server guesses by names, in the order of a
hash table; constrained output of a chat model then ends with ``<|endoftext|>`` instead of its end of
turn. The copy says it: the end of turn is the end-of-sequence token, as chat models have it. The entry
is made out of the one for the beginning of a sequence, which only matters to text that the server
tokenises, and it gets none. Weights, ids and probabilities stay the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import gguf

from heddle.errors import ConfigError

_TOKEN_TYPE_NORMAL = 1
_TOKEN_TYPE_UNUSED = 5
_TOKEN_TYPE_BYTE = 6
_END_OF_TURN_KEY = "tokenizer.ggml.eot_token_id"
_FORMAT_VERSION = "2"
"""Change it when the copy changes; old copies are then not found."""


def streamable_copy(model: Path, cache_dir: Path) -> Path:
    """The copy of ``model`` in the cache, made on first use (seconds, plus the copying).

    Safe in several processes at once. Raises ``ConfigError`` where it cannot be made.
    """
    try:
        target = cache_dir / "streamable" / f"{model.stem}-{_identity(model)}.gguf"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            copy = Path(incoming) / model.name
            shutil.copyfile(model, copy)
            adapt(copy)
            os.replace(copy, target)
    except OSError as exc:
        raise ConfigError(f"cannot prepare {model} in {cache_dir}: {exc}") from exc
    return target


def adapt(model: Path) -> int:
    """Change the vocabulary in place; returns the number of tokens that end inside a character.

    Raises ``ConfigError`` where the file has no vocabulary.
    """
    try:
        reader = gguf.GGUFReader(model, "r+")
    except ValueError as exc:
        raise ConfigError(f"{model} is not a GGUF file that can be read: {exc}") from exc
    marked = _mark_partial_tokens(reader, model)
    _name_end_of_turn(reader)
    reader.data.flush()
    return marked


def _mark_partial_tokens(reader: gguf.GGUFReader, model: Path) -> int:
    texts = reader.get_field("tokenizer.ggml.tokens")
    types = reader.get_field("tokenizer.ggml.token_type")
    kind = reader.get_field("tokenizer.ggml.model")
    if texts is None or types is None or kind is None:
        raise ConfigError(f"{model} carries no vocabulary")
    decoded = (bytes(texts.parts[at]).decode(errors="replace") for at in texts.data)
    marked = 0
    for piece, at in zip(_pieces(decoded, str(kind.contents())), types.data, strict=True):
        token_type = types.parts[at]
        if token_type[0] in (_TOKEN_TYPE_NORMAL, _TOKEN_TYPE_BYTE) and ends_inside_character(piece):
            token_type[0] = _TOKEN_TYPE_UNUSED
            marked += 1
    return marked


def _name_end_of_turn(reader: gguf.GGUFReader) -> None:
    end_of_sequence = reader.get_field("tokenizer.ggml.eos_token_id")
    spare = reader.get_field("tokenizer.ggml.bos_token_id")
    if reader.get_field(_END_OF_TURN_KEY) is not None or end_of_sequence is None or spare is None:
        return
    spare.parts[1][:] = list(_END_OF_TURN_KEY.encode())  # a key of the same length
    spare.parts[-1][0] = end_of_sequence.parts[-1][0]


def ends_inside_character(piece: bytes) -> bool:
    """Whether the last lead byte of a UTF-8 sequence lacks some of its continuation bytes."""
    for length, byte in enumerate(reversed(piece[-4:]), start=1):
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # a continuation byte: its lead byte lies further left
        return length < _sequence_length(byte)
    return False


def _sequence_length(lead: int) -> int:
    if lead & 0b1110_0000 == 0b1100_0000:
        return 2
    if lead & 0b1111_0000 == 0b1110_0000:
        return 3
    return 4 if lead & 0b1111_1000 == 0b1111_0000 else 1


def _pieces(texts: Iterable[str], vocabulary: str) -> Iterator[bytes]:
    """The bytes that each token stands for, from its text in the vocabulary."""
    byte_of = _byte_of_character() if vocabulary == "gpt2" else {}
    for text in texts:
        if byte_of and all(character in byte_of for character in text):
            yield bytes(byte_of[character] for character in text)
        elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            yield bytes([int(text[3:5], 16)])  # a byte of a SentencePiece vocabulary
        else:
            yield text.encode()


def _byte_of_character() -> dict[str, int]:
    """The table of byte-level BPE: printable bytes stand for themselves, the rest from U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in printable)
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def _identity(model: Path) -> str:
    stat = model.stat()
    described = f"{_FORMAT_VERSION}\0{model.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]
