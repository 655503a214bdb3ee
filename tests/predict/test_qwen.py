"""``qwen`` on a tiny Qwen3 of random weights: the real code path, on any CPU."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heddle.errors import ConfigError
from heddle.predict.models.base import Example, Lesson

if TYPE_CHECKING:
    from heddle.predict.models.qwen import Qwen

torch = pytest.importorskip("torch", reason="the extra 'predictor' is not installed")
transformers = pytest.importorskip("transformers", reason="the extra 'predictor' is not installed")


class Bytes:
    """A vocabulary of bytes: nothing to download."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def save_pretrained(self, save_directory: str) -> None:
        """There is nothing to save."""


def lesson(seed: int, count: int) -> Lesson:
    """The last word tells the length."""
    rng = random.Random(seed)
    long = [rng.random() < 0.5 for _ in range(count)]
    examples = [Example(1, 100, 200, 30, text="User: go\nAssistant: " + ("zzzz" if x else "a")) for x in long]
    return Lesson(examples, np.log1p([4000 if x else 40 for x in long]), np.ones(count))


def tiny() -> Qwen:
    """A Qwen3 of two layers and its model of length."""
    from heddle.predict.models.qwen import FineTuning, Qwen

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    tuning = FineTuning(epochs=6, batch=16, learning_rate=1e-3, head_learning_rate=1e-2)
    return Qwen(transformers.Qwen3Model(config), Bytes(), tuning)


def test_it_learns_what_the_text_says() -> None:
    """The loss falls, and unseen contexts are told apart."""
    model = tiny()
    model.fit(lesson(1, 128))
    assert statistics.mean(model.losses[-4:]) < 0.3 * statistics.mean(model.losses[:4])
    fresh = lesson(2, 40)
    medians = model.predict(fresh.examples)[:, 1]
    assert np.corrcoef(medians, fresh.log_remaining)[0, 1] > 0.9


def test_a_checkpoint_says_the_same(tmp_path: Path) -> None:
    """Saved, loaded into a new object, same quantiles."""
    from heddle.predict.models.qwen import Qwen

    model, fresh = tiny(), lesson(3, 20)
    model.fit(lesson(1, 64))
    model.save(tmp_path)
    loaded = Qwen.load(tmp_path, Bytes())
    assert (loaded.predict(fresh.examples) == model.predict(fresh.examples)).all()


def test_quantiles_do_not_depend_on_the_batch() -> None:
    """Padding changes nothing, and they are ascending."""
    model = tiny()
    examples = [Example(1, 1, 1, 1, text=text) for text in ("a", "a longer text", "x" * 60)]
    together = model.predict(examples)
    alone = np.concatenate([model.predict([example]) for example in examples])
    assert together == pytest.approx(alone, abs=1e-4)
    assert (np.diff(together, axis=1) >= 0.0).all()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """With its name."""
    from heddle.predict.models.qwen import Qwen

    with pytest.raises(ConfigError, match=str(tmp_path)):
        Qwen.load(tmp_path, Bytes())
