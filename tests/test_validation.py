"""What is wrong is told without a word of Python, and what was meant is guessed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from heddle.api.schemas import BatchRequest
from heddle.config import HeddleConfig, load_config
from heddle.errors import ConfigError
from heddle.validation import faults, field_names, in_words

PROMPT: dict[str, object] = {"task": {}}


def complaints(**fields: object) -> list[str]:
    """About a batch with these fields."""
    with pytest.raises(ValidationError) as caught:
        BatchRequest.model_validate({"environment": "math", "prompts": [PROMPT], **fields})
    return [str(fault) for fault in faults(caught.value, field_names(BatchRequest))]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"envronment": "x"}, "envronment: no such field; did you mean 'environment'?"),
        ({"limits": {"max_step": 1}}, "limits.max_step: no such field; did you mean 'max_steps'?"),
        ({"max_steps": 1}, "max_steps: no such field; did you mean 'limits.max_steps'?"),
        ({"temperature": 1}, "temperature: no such field; did you mean 'sampling.temperature'?"),
        ({"prompts": [{"tsk": {}, **PROMPT}]}, "prompts.0.tsk: no such field; did you mean 'task'?"),
        ({"colour": "red"}, "colour: no such field"),
        ({"prompts": [{}]}, "prompts.0.task: this field is required"),
        ({"limits": []}, "limits: should be an object with named fields"),
        ({"prompts": {}}, "prompts: should be a list"),
    ],
)
def test_a_fault_names_its_field_and_what_was_meant(fields: dict[str, object], complaint: str) -> None:
    """By likeness among its siblings, else by a name that stands elsewhere."""
    assert complaints(**fields) == [complaint]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("engin.slots", 4, "engin: no such field; did you mean 'engine'?"),
        ("engine.slot", 4, "engine.slot: no such field; did you mean 'slots'?"),
        ("slots", 4, "slots: no such field; did you mean 'engine.slots'?"),
        ("engine", 4, "engine: should be an object with named fields"),
        ("engine.slots", True, "engine.slots: should not be true or false"),
        ("tools.timeout_s", float("inf"), "tools.timeout_s: Input should be a finite number"),
        ("tools.timeout_s", float("nan"), "tools.timeout_s: Input should be a finite number"),
        ("data_dir", "", "data_dir: should not be empty"),
        ("decisions.profile", "", "decisions.profile: should not be empty"),
        ("server.token", "", "server.token: should not be empty"),
        (
            "server.host",
            "0.0.0.0",
            "server: server.token is required when server.host is '0.0.0.0' (not loopback)",
        ),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: object, complaint: str) -> None:
    """No wait without a deadline, no empty name that means the folder at hand, no empty token."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, {key: value})
    assert str(caught.value) == f"bad configuration: {complaint}"


def test_a_pool_of_one_worker_may_look_like_a_number() -> None:
    """``--set engine.pool=2`` is read as TOML, which makes a number of it."""
    assert load_config(None, {"engine.pool": 2}).engine.pool == "2"


def test_every_setting_can_be_suggested() -> None:
    """Also those within optional and nested sections."""
    wanted = {
        "data_dir",
        "engine.slots",
        "engine.sglang.prefix_store.kind",
        "engine.sglang.groups.extra_args",
    }
    assert wanted <= {*field_names(HeddleConfig)}


def test_a_fault_is_told_in_one_line() -> None:
    """Pydantic's own text has a line for each fault, the value, and an address on the web."""
    with pytest.raises(ValidationError) as caught:
        BatchRequest.model_validate_json(b"{")
    assert in_words(caught.value) == "Invalid JSON: EOF while parsing an object at line 1 column 1"
    assert in_words(ConfigError("no such folder")) == "no such folder"
