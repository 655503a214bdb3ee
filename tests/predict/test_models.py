"""Models that read text: they learn, they are saved and loaded, they are served by a process."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path

import numpy as np
import pytest

from heddle.errors import ConfigError
from heddle.predict.models.base import LEVELS, Example, LengthModel, Lesson
from heddle.predict.models.catalogue import load_model, make_model, trained_models
from heddle.predict.models.service import answer, serve
from heddle.predict.models.wire import ANSWER, READY, Ready, Request, encode
from heddle.predict.trust import spearman

pytest.importorskip("lightgbm", reason="the extra 'learn' is not installed")
pytest.importorskip("sklearn", reason="the extra 'learn' is not installed")


def lesson(seed: int, count: int) -> Lesson:
    """Texts of which one word tells the length; the counts tell a little."""
    rng = random.Random(seed)
    words, lengths = {"brief": 50, "usual": 400, "endless": 3000}, []
    examples = []
    for _ in range(count):
        word, steps = rng.choice(list(words)), rng.randrange(4)
        filler = " ".join(rng.choice(("alpha", "beta", "gamma")) for _ in range(20))
        text = f"User: a {word} task {filler}" + "\nAssistant: so\nTool: 7" * steps
        examples.append(Example(steps, 100 * steps, 200, 30, text=text))
        lengths.append(words[word] * rng.lognormvariate(0.0, 0.2) / (1 + steps))
    return Lesson(examples, np.log1p(lengths), np.ones(count))


def trained(name: str) -> LengthModel:
    """Taught by 400 examples."""
    model = make_model(name)
    model.fit(lesson(1, 400))
    return model


@pytest.mark.parametrize("name", ["text", "features"])
def test_quantiles_are_ascending_and_hold(name: str) -> None:
    """On examples that it has not seen: about four of five are between the outer two."""
    fresh = lesson(2, 200)
    quantiles = trained(name).predict(fresh.examples)
    assert quantiles.shape == (200, len(LEVELS))
    assert (np.diff(quantiles, axis=1) >= 0.0).all()
    inside = (quantiles[:, 0] <= fresh.log_remaining) & (fresh.log_remaining <= quantiles[:, 2])
    assert 0.6 <= inside.mean() <= 0.97


def test_words_tell_the_length() -> None:
    """What only the text says is learned."""
    fresh = lesson(2, 200)
    assert spearman(trained("text").predict(fresh.examples)[:, 1], fresh.log_remaining) > 0.8


@pytest.mark.parametrize("name", ["text", "features"])
def test_a_loaded_model_says_the_same(name: str, tmp_path: Path) -> None:
    """To the last bit."""
    model, fresh = trained(name), lesson(3, 50)
    model.save(tmp_path)
    assert trained_models(tmp_path) == [name]
    loaded = load_model(name, tmp_path)
    assert (loaded.predict(fresh.examples) == model.predict(fresh.examples)).all()


@pytest.mark.parametrize("name", ["text", "features"])
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    """Missing, or cut short."""
    with pytest.raises(ConfigError, match=name):
        load_model(name, tmp_path)
    trained(name).save(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match=name):
        load_model(name, tmp_path)


def test_unknown_names_are_told() -> None:
    """With those that there are."""
    with pytest.raises(ConfigError, match="features, text, qwen"):
        make_model("oracle")


def test_the_service_answers_in_order() -> None:
    """Ready first, then an answer to each request, the same as the model's own."""
    model, fresh = trained("text"), lesson(4, 6)
    requests = [Request(n, fresh.examples[2 * n : 2 * n + 2]) for n in range(3)]
    sink = io.BytesIO()
    serve([model], io.BytesIO(b"".join(map(encode, requests))), sink)
    ready, *answers = sink.getvalue().splitlines()
    assert READY.validate_json(ready) == Ready(["text"])
    assert [ANSWER.validate_json(line) for line in answers] == [
        ANSWER.validate_json(encode(answer([model], request))) for request in requests
    ]
    first = answer([model], requests[0])
    assert all(math.isfinite(value) for row in first.quantiles["text"] for value in row)
