"""Token ids and constrained calls, held against a real llama.cpp server."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from jsonschema import Draft202012Validator

from heddle.engines.embedded.model import ensure_model
from heddle.text.constrain import FORCED_PREFIX, tool_call_schema
from heddle.text.parsers import make_parser
from heddle.text.tokenizer import TextTokenizer, load_tokenizer
from heddle.types import Message, ToolSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ALPHABETS = (
    "abcXYZ",
    " \t\n\r",
    "0123456789",
    "'sdmtrevl",
    '!?.,-_#$%^&*()[]{}<>|~`"\\/=+',
    "éüñßøΩжשमعربी",
    "漢字かなカナ한국어",
    "😀👩\u200d👧🏳️🌈",
    "²³½Ⅳ٢३",
    "\u00a0\u2003\u3000\u200b\u2028\x0b\x0c\x1c\x85\ufeff",
    "\u0301\u0302\u0303",
    "\x00\x01\x1d\x7f",
)
PIECES = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<repo_name>", "<|im_end", "|>"),
    *("'ll", "'RE", "I'm", " don't", "    ", "\n\n\n", "def f(x):\n    return x\n"),
    '<tool_call>\n{"name": "python"}',
)


@pytest.fixture(scope="module")
def model() -> Path:
    return ensure_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> TextTokenizer:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of an engine process with one thread."""
    key = secrets.token_hex(8)
    arguments = {"model": model, "threads": 1, "slots": 1, "slot-context": 512, "cache-ram-mib": 0}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    with (
        (tmp_path_factory.mktemp("engine") / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "heddle.engines.embedded.server", *options, f"--parent-pid={os.getpid()}"],
            env={**os.environ, "HEDDLE_ENGINE_KEY": key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=300.0, trust_env=False) as client:
            yield client
        process.kill()


def make_text(rng: random.Random) -> str:
    """Words of one script beside those of another, control tokens, and any character at all."""
    return "".join(make_piece(rng) for _ in range(rng.randint(1, 14)))


def make_piece(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(PIECES)
    if kind < 0.3:
        return chr(rng.choice([rng.randrange(0x3000), rng.randrange(0xE000, 0x110000)]))
    return "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 6)))


def test_encode_gives_the_ids_of_the_engine(tokenizer: TextTokenizer, server: httpx.Client) -> None:
    """Five hundred strings of every kind, id for id."""
    rng = random.Random(0)
    for _ in range(500):
        text = make_text(rng)
        answer = server.post("/tokenize", json={"content": text, "parse_special": True}).json()
        assert tokenizer.encode(text) == answer["tokens"], text


def test_the_model_ends_its_turn_with_the_id_that_we_say(tokenizer: TextTokenizer) -> None:
    """And with the two others that the engine takes for an end."""
    assert tokenizer.end_of_turn_id == 2
    assert tokenizer.end_ids == {0, 2, 4}


def test_a_constrained_call_fits_its_tool(tokenizer: TextTokenizer, server: httpx.Client) -> None:
    """Every kind of argument, as the engine's grammar understands our schema."""
    tool = ToolSpec(
        "probe",
        "Takes anything.",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 8},
                "count": {"type": "integer"},
                "share": {"type": "number"},
                "flag": {"type": ["boolean", "null"]},
                "mode": {"enum": ["fast", "exact"]},
                "rows": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
                "inner": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
            },
            "required": ["text", "count", "share", "flag", "mode", "rows", "inner"],
        },
    )
    prompt = tokenizer.render([Message("user", "Call the tool.")], [tool])
    request = {
        "prompt": prompt + tokenizer.encode(FORCED_PREFIX),
        "json_schema": tool_call_schema([tool]),
        "n_predict": 350,
        "return_tokens": True,
        "seed": 1,
        "temperature": 1.0,
    }
    ids = server.post("/completion", json=request).json()["tokens"]
    assert ids[-1] in tokenizer.end_ids
    turn = make_parser("hermes").parse(FORCED_PREFIX + tokenizer.decode(ids[:-1]), step_index=0)
    (call,) = turn.calls
    assert (call.name, turn.errors) == ("probe", ())
    Draft202012Validator(dict(tool.parameters)).validate(dict(call.arguments))
