"""``kill -9`` of a coordinator at every instant: nothing is lost, doubled or changed, and nobody is left.

A batch runs on a deterministic engine with real tools, a real SQLite file and real processes. It is killed
at a boundary, started anew, and must end with the records of the run that nothing disturbed. A fair sample of
the boundaries is tried; all of them with ``--full``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from crash_child import Boundary, CrashAt, Work
from crash_rig import (
    Rig,
    check_recovered,
    counted,
    crash_rig,
    deliveries,
    essences,
    stored_records,
    unresolved_calls,
)

from heddle.records import Trajectory
from heddle.tools.sandbox import Isolation, detect_isolation

pytestmark = pytest.mark.timeout(3600)

PROMPTS = 8
MANY_PROMPTS = 48
SAMPLED_POINTS = 10
"""Of each kind of boundary."""
INSTANTS, ALL_INSTANTS = 10, 200


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with crash_rig() as made:
        yield made


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    return detect_isolation()


@pytest.fixture(scope="module")
def undisturbed(
    rig: Rig, isolation: Isolation, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Mapping[str, Trajectory], Mapping[str, int]]:
    """The records of a run that nothing disturbed, and the instants that it passed."""
    work = Work(tmp_path_factory.mktemp("undisturbed"), PROMPTS, isolation)
    assert rig.run(work)
    records = essences(stored_records(work.data_dir))
    assert len(records) == PROMPTS
    calls = [call for record in records.values() for step in record.steps for call in step.tool_calls]
    assert {call.name for call in calls} == {"echo", "run", "post"}
    assert sum(map(unresolved_calls, records.values())) == 0
    assert set(deliveries(work).values()) == {1}
    return records, counted(work)


def points(total: int, wanted: int, everything: bool) -> list[int]:
    """Numbers spread evenly over all of them, the first and the last among them."""
    if everything or total <= wanted:
        return list(range(total))
    return sorted({round(place * (total - 1) / (wanted - 1)) for place in range(wanted)})


@pytest.mark.parametrize("boundary", [Boundary.EVENT, Boundary.COMMITTING, Boundary.COMMITTED])
def test_a_kill_at_a_boundary_changes_nothing_in_the_end(
    boundary: Boundary,
    rig: Rig,
    isolation: Isolation,
    undisturbed: tuple[Mapping[str, Trajectory], Mapping[str, int]],
    tmp_path: Path,
    full: bool,
) -> None:
    """Killed once, started anew: the records of the undisturbed run, and no delivery was repeated."""
    reference, passed = undisturbed
    unresolved = killed = 0
    tried = points(passed[boundary], SAMPLED_POINTS, full)
    for number in tried:
        work = Work(tmp_path / str(number), PROMPTS, isolation)
        killed += not rig.run(work, CrashAt(boundary, number))
        before = stored_records(work.data_dir)
        assert rig.run(work)
        unresolved += check_recovered(work, reference, before)
    rig.wait_for_orphans()
    assert killed > len(tried) / 2  # how many writes share a group differs from run to run
    assert unresolved <= PROMPTS * killed


def test_a_kill_during_the_recovery_from_a_kill_changes_nothing_either(
    rig: Rig,
    isolation: Isolation,
    undisturbed: tuple[Mapping[str, Trajectory], Mapping[str, int]],
    tmp_path: Path,
    full: bool,
) -> None:
    """Twice dead, before and while the journals are read back, and again on the way."""
    reference, passed = undisturbed
    for number in points(passed[Boundary.EVENT], 4, full):
        work = Work(tmp_path / str(number), PROMPTS, isolation)
        assert not rig.run(work, CrashAt(Boundary.EVENT, number))
        rig.run(work, CrashAt(Boundary.RESUMING, number % PROMPTS))
        rig.run(work, CrashAt(Boundary.EVENT, number // 2))
        before = stored_records(work.data_dir)
        assert rig.run(work)
        check_recovered(work, reference, before)
    rig.wait_for_orphans()


def test_kills_at_random_instants_of_a_larger_batch_change_nothing(
    rig: Rig, isolation: Isolation, tmp_path: Path, full: bool
) -> None:
    """Wherever the clock strikes, several times in one life of the batch."""
    calm = Work(tmp_path / "calm", MANY_PROMPTS, isolation, token_delay_s=0.001)
    assert rig.run(calm)
    reference = essences(stored_records(calm.data_dir))
    rng = random.Random(7)
    kills, wanted = 0, ALL_INSTANTS if full else INSTANTS
    for life in range(wanted):
        if kills >= wanted:
            break
        work = Work(tmp_path / str(life), MANY_PROMPTS, isolation, token_delay_s=0.001)
        done = False
        while not done and kills < wanted:
            before = stored_records(work.data_dir) if work.data_dir.exists() else []
            done = rig.run(work, kill_after_s=rng.uniform(0.05, 0.8))
            kills += not done
            assert stored_records(work.data_dir)[: len(before)] == before
        before = stored_records(work.data_dir)
        assert done or rig.run(work)
        check_recovered(work, reference, before)
    rig.wait_for_orphans()
    assert kills >= wanted
