"""Records in the shapes of trainers, against golden files and rule by rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from export_records import ALL, CRASHED, OTHER_PROMPT, SILENT, SOLVED, UNJUDGED, WRONG

from heddle.export.openai import to_openai_messages
from heddle.export.selection import Excluded, Exclusion, select
from heddle.export.slime import to_slime, to_slime_samples
from heddle.export.verl import to_verl
from heddle.records import Failure, FailureKind

GOLDEN = Path(__file__).parent / "golden"


def pretty(value: object) -> str:
    """The form of the golden files."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def verl_as_lists() -> dict[str, object]:
    """A whole verl batch without numpy."""
    batch = to_verl(ALL, pad_token_id=9)
    return {
        "tensors": {name: values.tolist() for name, values in batch.tensors.items()},
        "non_tensors": {name: values.tolist() for name, values in batch.non_tensors.items()},
        "excluded": batch.excluded,
    }


@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ("verl.json", verl_as_lists()),
        ("slime.json", to_slime(SOLVED, group_index=4, index=17)),
        ("slime_masked.json", to_slime(CRASHED, group_index=5, index=18)),
        ("openai_messages.json", to_openai_messages(SOLVED)),
    ],
)
def test_the_export_equals_its_golden_file(name: str, exported: object) -> None:
    """Any change of an exported shape shows up in review as a change of a file."""
    assert pretty(exported) == (GOLDEN / name).read_text(encoding="utf-8")


def test_infra_failures_silence_and_missing_rewards_are_no_samples() -> None:
    """Each is left out for its own reason, and none becomes a reward of 0."""
    selection = select(ALL)
    assert selection.samples == (SOLVED, WRONG, OTHER_PROMPT)
    assert selection.excluded == (
        Excluded(CRASHED.trajectory_id, Exclusion.INFRA_FAILURE),
        Excluded(SILENT.trajectory_id, Exclusion.NO_RESPONSE),
        Excluded(UNJUDGED.trajectory_id, Exclusion.NO_REWARD),
    )


def test_a_data_failure_is_a_sample() -> None:
    """What the policy brought about is evidence about the policy."""
    failed = replace(CRASHED, failure=Failure(FailureKind.DATA, "reward", "no answer"), reward=-1.0)
    assert select([failed]).samples == (failed,)


def test_without_any_reward_the_trainer_computes_its_own() -> None:
    """Nothing is left out for want of a reward, and verl finds no scores."""
    batch = to_verl([UNJUDGED, UNJUDGED])
    assert batch.excluded == ()
    assert "rm_scores" not in batch.tensors
    assert len(batch.tensors["prompts"]) == 2


def test_verl_arrays_agree_with_each_other() -> None:
    """Shapes, masks and positions are those that verl derives one from the other."""
    tensors = to_verl(ALL).tensors
    samples, prompt_width, response_width = 3, 3, 7
    assert tensors["prompts"].shape == (samples, prompt_width)
    assert tensors["input_ids"].shape == (samples, prompt_width + response_width)
    for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores"):
        assert tensors[name].shape == (samples, response_width)
    joined = np.concatenate([tensors["prompts"], tensors["responses"]], axis=1)
    assert joined.tolist() == tensors["input_ids"].tolist()
    response_attention = tensors["attention_mask"][:, prompt_width:]
    assert response_attention.sum(axis=1).tolist() == [7, 2, 2]
    assert bool((tensors["response_mask"] <= response_attention).all())
    assert tensors["rm_scores"].sum(axis=1).tolist() == [1.0, 0.0, 0.5]
    assert tensors["rm_scores"][0].tolist() == [0.0] * 6 + [1.0]
    assert tensors["position_ids"][2].tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]


def test_an_empty_verl_batch_has_its_keys() -> None:
    """Where nothing is a sample the arrays are empty, not absent."""
    batch = to_verl([CRASHED])
    full = to_verl([UNJUDGED]).tensors
    assert {name: values.size for name, values in batch.tensors.items()} == dict.fromkeys(full, 0)


def test_slime_numbers_groups_and_samples_in_order() -> None:
    """Indices run over the samples that remain; equal group ids of two batches are two groups."""
    elsewhere = replace(SOLVED, batch_id="b2")
    exported = to_slime_samples([SOLVED, CRASHED, OTHER_PROMPT, WRONG, elsewhere])
    assert [(s["group_index"], s["index"]) for s in exported.samples] == [(0, 0), (1, 1), (0, 2), (2, 3)]
    assert exported.excluded == (Excluded(CRASHED.trajectory_id, Exclusion.INFRA_FAILURE),)


def test_slime_arrays_cover_the_response() -> None:
    """The response is the tail of the tokens, and mask and logprobs are as long as it."""
    sample = to_slime(SOLVED)
    assert sample["tokens"][-sample["response_length"] :] == SOLVED.response_ids
    assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == sample["response_length"]
