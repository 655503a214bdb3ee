"""``qwen``: a causal language model of Hugging Face with a quantile head (extra ``predictor``).

The hidden state of the last token of the context, and the counts beside it, give three quantiles of the
remaining tokens. Fine-tuned as a whole with the pinball loss, on pairs of context and what remained. The
default base is ``Qwen/Qwen3-0.6B``; any causal model that ``transformers`` can load will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from heddle.errors import ConfigError
from heddle.predict.buckets import Floats
from heddle.predict.models.base import LEVELS, Example, Lesson

BASE = "Qwen/Qwen3-0.6B"

_COUNTS = 5


class Encoder(Protocol):
    """Text to ids of the base model's vocabulary."""

    def encode(self, text: str) -> list[int]: ...

    def save_pretrained(self, save_directory: str) -> object: ...


@dataclass(frozen=True, slots=True)
class FineTuning:
    """How the model learns."""

    epochs: int = 2
    batch: int = 16
    most_tokens: int = 1024
    """Of a context; the beginning of longer ones is cut."""
    learning_rate: float = 2e-5
    head_learning_rate: float = 1e-3
    seed: int = 0


class QuantileHead(nn.Module):
    """Three ascending quantiles from a hidden state and the counts; shape (n, 3)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden + _COUNTS, len(LEVELS))

    def forward(self, state: Tensor, counts: Tensor) -> Tensor:
        raw: Tensor = self.out(torch.cat((self.norm(state.float()), counts), dim=1))
        gaps = nn.functional.softplus(raw[:, [0, 2]])
        middle = raw[:, 1]
        return torch.stack((middle - gaps[:, 0], middle, middle + gaps[:, 1]), dim=1)


class Qwen:
    """Implements ``LengthModel``. ``losses`` are those of the last training, one a step."""

    name = "qwen"

    def __init__(
        self, backbone: PreTrainedModel, encoder: Encoder, tuning: FineTuning = FineTuning()
    ) -> None:
        torch.manual_seed(tuning.seed)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._backbone = backbone.to(self._device)
        self._encoder = encoder
        self._tuning = tuning
        self._head = QuantileHead(backbone.config.hidden_size).to(self._device)
        self.losses: list[float] = []

    @staticmethod
    def of(base: str = BASE, tuning: FineTuning = FineTuning()) -> Qwen:
        """From the name of a model or the path of one. Raises ``ConfigError`` where it cannot be loaded."""
        try:
            return Qwen(AutoModel.from_pretrained(base), AutoTokenizer.from_pretrained(base), tuning)
        except (OSError, ValueError) as exc:
            raise ConfigError(f"cannot load the language model {base!r}: {exc}") from exc

    def fit(self, lesson: Lesson) -> None:
        tuning = self._tuning
        torch.manual_seed(tuning.seed)
        order = np.random.default_rng(tuning.seed)
        groups = [
            {"params": self._backbone.parameters(), "lr": tuning.learning_rate},
            {"params": self._head.parameters(), "lr": tuning.head_learning_rate},
        ]
        optimizer = torch.optim.AdamW(groups)
        with torch.no_grad():
            self._head.out.bias[1] = float(np.average(lesson.log_remaining, weights=lesson.weights))
        weights = lesson.weights / lesson.weights.mean()
        self._backbone.train()
        self.losses = []
        for _ in range(tuning.epochs):
            shuffled = order.permutation(len(lesson.examples))
            for start in range(0, len(shuffled), tuning.batch):
                chosen = shuffled[start : start + tuning.batch]
                loss = self._loss(
                    [lesson.examples[i] for i in chosen], lesson.log_remaining[chosen], weights[chosen]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.losses.append(float(loss.detach()))
        self._backbone.eval()

    def predict(self, examples: Sequence[Example]) -> Floats:
        self._backbone.eval()
        parts = []
        with torch.inference_mode():
            for start in range(0, len(examples), self._tuning.batch):
                quantiles = self._quantiles(examples[start : start + self._tuning.batch])
                parts.append(quantiles.double().cpu().numpy())
        return np.maximum(np.concatenate(parts), 0.0)

    def save(self, folder: Path) -> None:
        self._backbone.save_pretrained(str(folder / "qwen"))
        self._encoder.save_pretrained(str(folder / "qwen"))
        save_file(self._head.state_dict(), str(folder / "qwen-head.safetensors"))

    @staticmethod
    def load(folder: Path, encoder: Encoder | None = None) -> Qwen:
        """What ``save`` wrote; ``encoder`` in place of the saved tokenizer. Raises ``ConfigError``."""
        base = str(folder / "qwen")
        try:
            model = Qwen(AutoModel.from_pretrained(base), encoder or AutoTokenizer.from_pretrained(base))
            model._head.load_state_dict(load_file(str(folder / "qwen-head.safetensors")))
        except (OSError, ValueError, RuntimeError) as exc:
            raise ConfigError(f"cannot read the model in {folder}: {exc}") from exc
        return model

    def _loss(self, examples: Sequence[Example], log_remaining: Floats, weights: Floats) -> Tensor:
        true = torch.tensor(log_remaining, dtype=torch.float32, device=self._device)
        error = true[:, None] - self._quantiles(examples)
        levels = torch.tensor(LEVELS, device=self._device)
        pinball = torch.maximum(levels * error, (levels - 1.0) * error).mean(dim=1)
        return (pinball * torch.tensor(weights, dtype=torch.float32, device=self._device)).mean()

    def _quantiles(self, examples: Sequence[Example]) -> Tensor:
        ids = [self._encoder.encode(example.text)[-self._tuning.most_tokens :] or [0] for example in examples]
        longest = max(map(len, ids))
        padded = torch.zeros((len(ids), longest), dtype=torch.long, device=self._device)
        mask = torch.zeros_like(padded)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = torch.tensor(tokens, device=self._device)
            mask[row, : len(tokens)] = 1
        states = self._backbone(input_ids=padded, attention_mask=mask, use_cache=False).last_hidden_state
        last = states[torch.arange(len(ids), device=self._device), mask.sum(dim=1) - 1]
        counts = torch.tensor([_counts(e) for e in examples], dtype=torch.float32, device=self._device)
        quantiles: Tensor = self._head(last, torch.log1p(counts) / 10.0)
        return quantiles


def _counts(example: Example) -> tuple[int, ...]:
    return (
        example.steps_done,
        example.generated_tokens,
        example.context_tokens,
        example.prompt_tokens,
        example.last_step.output_tokens,
    )
