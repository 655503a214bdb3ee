"""Models by name; each is imported only where it is asked for, with the libraries that it needs."""

from __future__ import annotations

from pathlib import Path

from heddle.errors import ConfigError
from heddle.predict.models.base import LengthModel

MODEL_NAMES = ("features", "text", "qwen")


_FILES = {"features": "features-0.5.txt", "text": "text.npz", "qwen": "qwen-head.safetensors"}


def trained_models(folder: Path) -> list[str]:
    """Names of the models in a folder. Raises ``ConfigError`` where it has none."""
    names = [name for name, file in _FILES.items() if (folder / file).is_file()]
    if not names:
        raise ConfigError(f"{folder} has no trained models; heddle predictor train makes some")
    return names


def make_model(name: str) -> LengthModel:
    """An untrained model. Raises ``ConfigError`` for no such name, and where its libraries are not there."""
    try:
        match name:
            case "features":
                from heddle.predict.models.features import Features

                return Features()
            case "text":
                from heddle.predict.models.text import Text

                return Text()
            case "qwen":
                from heddle.predict.models.qwen import Qwen

                return Qwen.of()
    except ImportError as exc:
        raise _missing(name) from exc
    raise _unknown(name)


def load_model(name: str, folder: Path) -> LengthModel:
    """A trained model. Raises ``ConfigError``, also where the folder has none of this name."""
    try:
        match name:
            case "features":
                from heddle.predict.models.features import Features

                return Features.load(folder)
            case "text":
                from heddle.predict.models.text import Text

                return Text.load(folder)
            case "qwen":
                from heddle.predict.models.qwen import Qwen

                return Qwen.load(folder)
    except ImportError as exc:
        raise _missing(name) from exc
    raise _unknown(name)


def _missing(name: str) -> ConfigError:
    extra = "predictor" if name == "qwen" else "learn"
    return ConfigError(f"the model {name!r} needs the extra {extra!r}: pip install 'heddle[{extra}]'")


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"unknown model {name!r}; choose among {', '.join(MODEL_NAMES)}")
