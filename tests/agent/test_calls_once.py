"""Tool calls and crashes: what may run again does, what must not does not, and the model is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from heddle.agent import journal, once
from heddle.agent.invoker import RecordingInvoker
from heddle.agent.journal import JournalEntry, TrajectoryJournal
from heddle.agent.once import UNRESOLVED, CallGuard
from heddle.agent.ports import ToolInvocation, ToolResult
from heddle.errors import ToolBackendError, ToolRefused
from heddle.records import Trajectory
from heddle.store.gates import GateViolation
from heddle.types import ToolCall, TrajectoryId

T = TrajectoryId("b-g0-t0")
PAY = ToolCall("call_0_0", "pay", {"amount": 5})
MAX_RETRIES = 2


@dataclass
class Tools:
    """Runs everything at once; ``once`` is the backend whose calls must not be repeated."""

    delivered: list[str] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    failure: Exception | None = None
    failures: int = 1_000_000
    """So many deliveries meet the failure, where there is one."""

    def repeatable(self, backend: str) -> bool:
        return backend != "once"

    async def invoke(self, invocation: ToolInvocation) -> ToolResult:
        self.delivered.append(invocation.key)
        self.attempts.append((invocation.attempt, invocation.retry))
        if self.failure is not None and len(self.delivered) <= self.failures:
            raise self.failure
        return ToolResult(f"paid {len(self.delivered)}", True, "ok", 0.5, 0.25, 1.0, {"receipt": 7})


@dataclass
class Disk:
    """A journal whose entries can be read back, as after a crash."""

    entries: list[JournalEntry] = field(default_factory=list)

    async def append(self, entry: JournalEntry) -> None:
        self.entries.append(entry)

    async def commit(self, trajectory: Trajectory, violations: Sequence[GateViolation] = ()) -> None:
        raise AssertionError("no trajectory ends here")


def started_anew(tools: Tools, disk: Disk) -> CallGuard:
    """The guard of a process that goes on with what is on disk."""
    written = TrajectoryJournal(disk, T, 0)
    guard = CallGuard(tools, written, MAX_RETRIES)
    for entry in disk.entries:
        if entry.kind == journal.CALL_STARTED:
            guard.restore_started(journal.decode_started(entry.payload))
        else:
            guard.restore_finished(journal.decode_finished(entry.payload))
        written.go_on_after(entry)
    return guard


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between deliveries."""
    monkeypatch.setattr(once, "RETRY_BACKOFF_S", 0.0)


def invoker(guard: CallGuard, scope: str = "0") -> RecordingInvoker:
    return RecordingInvoker(guard, T, 0, scope)


async def test_a_repeatable_call_leaves_no_trace_in_the_journal() -> None:
    """Nothing is paid for what may simply run again."""
    tools, disk = Tools(), Disk()
    await invoker(started_anew(tools, disk)).invoke(PAY, backend="any")
    assert disk.entries == []
    await invoker(started_anew(tools, disk)).invoke(PAY, backend="any")
    assert len(tools.delivered) == 2
    assert len(set(tools.delivered)) == 1  # a repetition carries the same key


async def test_a_call_that_ended_gives_its_result_again_and_does_not_run() -> None:
    """The same result in every part, in the record too."""
    tools, disk = Tools(), Disk()
    before = invoker(started_anew(tools, disk))
    result = await before.invoke(PAY, backend="once")
    after = invoker(started_anew(tools, disk))
    assert await after.invoke(PAY, backend="once") == result
    assert after.records == before.records
    assert tools.delivered == [f"{T}/0/call_0_0/0"]


async def test_a_call_of_which_only_the_start_is_known_is_not_run_again_and_says_so() -> None:
    """It is neither a success nor a failure."""
    tools, disk = Tools(), Disk()
    await invoker(started_anew(tools, disk)).invoke(PAY, backend="once")
    assert [entry.kind for entry in disk.entries] == [journal.CALL_STARTED, journal.CALL_FINISHED]
    disk.entries.pop()
    for _ in range(2):  # a second crash changes nothing
        assert await invoker(started_anew(tools, disk)).invoke(PAY, backend="once") == UNRESOLVED
    assert len(tools.delivered) == 1


async def test_the_start_is_on_disk_before_the_call_is_delivered() -> None:
    """Also of a call whose backend fails: it may have been delivered."""
    tools, disk = Tools(failure=ToolBackendError("connection lost")), Disk()
    with pytest.raises(ToolBackendError, match="connection lost"):
        await invoker(started_anew(tools, disk)).invoke(PAY, backend="once")
    assert [entry.kind for entry in disk.entries] == [journal.CALL_STARTED]
    assert await invoker(started_anew(tools, disk)).invoke(PAY, backend="once") == UNRESOLVED


async def test_calls_are_told_apart_by_step_and_by_their_number_in_it() -> None:
    """An environment may make several calls of one, and the model may call alike in another step."""
    tools, disk = Tools(), Disk()
    guard = started_anew(tools, disk)
    for scope in ("0", "1", "reward"):
        step = invoker(guard, scope)
        await step.invoke(PAY, backend="once")
        await step.invoke(PAY, backend="once")
    assert len(set(tools.delivered)) == len(tools.delivered) == 6
    assert [entry.sequence for entry in disk.entries] == list(range(12))


async def test_an_observed_step_is_forgotten() -> None:
    """Memory follows what is open."""
    tools, disk = Tools(), Disk()
    await invoker(started_anew(tools, disk)).invoke(PAY, backend="once")
    guard = started_anew(tools, disk)
    guard.forget()
    await invoker(guard).invoke(PAY, backend="once")
    assert len(tools.delivered) == 2


async def test_a_backend_that_fails_is_asked_again_under_the_same_key() -> None:
    """Each delivery carries a higher number, and the record says how many came to nothing."""
    tools, disk = Tools(failure=ToolBackendError("connection lost"), failures=2), Disk()
    step = invoker(started_anew(tools, disk))
    result = await step.invoke(PAY, backend="any")
    assert (result.output, result.retries) == ("paid 3", 2)
    assert [record.retries for record in step.records] == [2]
    assert tools.attempts == [(0, 0), (0, 1), (0, 2)]
    assert len(set(tools.delivered)) == 1


async def test_retries_end() -> None:
    """A backend that stays broken ends the trajectory."""
    tools, disk = Tools(failure=ToolBackendError("connection lost")), Disk()
    with pytest.raises(ToolBackendError, match="connection lost"):
        await invoker(started_anew(tools, disk)).invoke(PAY, backend="any")
    assert len(tools.delivered) == 1 + MAX_RETRIES


@pytest.mark.parametrize(
    ("backend", "failure"), [("once", ToolBackendError("connection lost")), ("any", ToolRefused("closed"))]
)
async def test_what_must_not_or_cannot_be_repeated_is_not(backend: str, failure: Exception) -> None:
    """A call that changes the world may have been delivered; one that was refused would be again."""
    tools, disk = Tools(failure=failure), Disk()
    with pytest.raises(type(failure)):
        await invoker(started_anew(tools, disk)).invoke(PAY, backend=backend)
    assert len(tools.delivered) == 1
