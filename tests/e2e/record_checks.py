"""What must hold of every finished record, as plain assertions; shared by all tests of whole servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

import pytest

from heddle.environments.base import ToolEnvironment
from heddle.environments.registry import EnvironmentRegistry
from heddle.records import Trajectory
from heddle.store.gates import check
from heddle.text.constrain import FORCED_PREFIX
from heddle.text.tokenizer import TextTokenizer


def assert_token_exact(record: Trajectory) -> None:
    """Equal lengths; mask 1 exactly on what was sampled; every request was the prefix of what is here."""
    lengths = {
        len(record.response_ids),
        len(record.response_mask),
        len(record.response_logprobs),
        len(record.weight_versions),
    }
    assert lengths == {len(record.response_mask)}
    assert set(record.response_mask) <= {0, 1}
    assert record.sampled_tokens == sum(step.output_tokens for step in record.steps)
    given = (p for p, mask in zip(record.response_logprobs, record.response_mask, strict=True) if not mask)
    assert set(given) <= {0.0}
    starts = [start - len(record.prompt_ids) for start in (step.prompt_tokens for step in record.steps)]
    sampled = {
        place
        for start, step in zip(starts, record.steps, strict=True)
        for place in range(start, start + step.output_tokens)
    }
    assert {place for place, mask in enumerate(record.response_mask) if mask == 1} == sampled
    for step, following in zip(record.steps, record.steps[1:], strict=False):
        end = step.prompt_tokens + step.output_tokens
        assert following.prompt_tokens >= end + following.forced_tokens


def assert_sound(record: Trajectory) -> None:
    """Time is accounted for within 1 %, and every admission gate lets the record pass."""
    assert record.timing.parts == pytest.approx(record.timing.wall, rel=0.01, abs=0.005)
    assert check(record) == []


_OPENING = "<|im_start|>assistant\n"
_UNSAID = {"", f"\n{_OPENING}", f"<|im_end|>\n{_OPENING}"}
"""What the template still writes where a response ends: its turn is not begun, closed, or cut off."""


@dataclass(frozen=True, slots=True)
class RecordJudge:
    """Knows tokenizer and environments, and so what a record of theirs should read like."""

    tokenizer: TextTokenizer
    environments: EnvironmentRegistry

    def check(self, record: Trajectory) -> None:
        """Everything that holds of any one record."""
        assert_token_exact(record)
        self._assert_forced(record)
        self._assert_reads_as_its_transcript(record)
        assert_sound(record)

    def _assert_forced(self, record: Trajectory) -> None:
        """A constrained step was sent the same ids before its first sampled token; a free one none."""
        forced_ids = self.tokenizer.encode(FORCED_PREFIX)
        context = [*record.prompt_ids, *record.response_ids]
        for step in record.steps:
            given = context[step.prompt_tokens - step.forced_tokens : step.prompt_tokens]
            assert given == (forced_ids if step.constrained else [])

    def _assert_reads_as_its_transcript(self, record: Trajectory) -> None:
        """The decoded ids are the chat template's text of the messages, but for the end of an open turn."""
        environment = self.environments.get(record.environment)
        tools = environment.tools if isinstance(environment, ToolEnvironment) else ()
        opening = list(takewhile(lambda message: message.role != "assistant", record.messages))
        assert record.prompt_ids == self.tokenizer.render(opening, tools)
        decoded = self.tokenizer.decode([*record.prompt_ids, *self._readable(record)])
        written = self.tokenizer.render_text(record.messages, tools)
        assert written.startswith(decoded)
        assert written[len(decoded) :] in _UNSAID
        place = 0
        for message in record.messages:
            place = decoded.index(message.content, place) + len(message.content)

    def _readable(self, record: Trajectory) -> Iterator[int]:
        """The response without sampled tokens that end a generation but no turn; no transcript has them."""
        foreign = self.tokenizer.end_ids - {self.tokenizer.end_of_turn_id}
        for token_id, mask in zip(record.response_ids, record.response_mask, strict=True):
            if not (mask == 1 and token_id in foreign):
                yield token_id


def assert_each_once(records: Sequence[Trajectory], batch_id: str, prompts: int, samples: int) -> None:
    """Every trajectory of the batch, none twice."""
    expected = [f"{batch_id}-g{group}-t{sample}" for group in range(prompts) for sample in range(samples)]
    assert sorted(record.trajectory_id for record in records) == sorted(expected)


def by_environment(records: Sequence[Trajectory]) -> dict[str, int]:
    """Records of each environment."""
    names = sorted(record.environment for record in records)
    return {name: len(list(same)) for name, same in groupby(names)}
