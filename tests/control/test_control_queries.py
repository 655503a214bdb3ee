"""What the control plane says of itself: why a trajectory waits, phases, gauges."""

from __future__ import annotations

import pytest
from control_rig import Rig, cancelled

from heddle.control.events import BatchCancelled, DispatchPaused
from heddle.errors import NotFound
from heddle.types import BatchId, StopReason, TrajectoryId, TrajectoryPhase, WorkerId


def test_explain_says_what_a_trajectory_waits_for() -> None:
    """Each phase has its sentence, and a waiting one knows its position."""
    rig = Rig(slots=1)
    rig.submit("a", 4)
    assert rig.plane.explain(TrajectoryId("a0"), rig.now).reason == "no worker is ready (there is none)"
    rig.pool(1)
    rig.step("a0")
    rig.step("a1")
    rig.tools_started("a1")

    told = {f"a{i}": rig.plane.explain(TrajectoryId(f"a{i}"), rig.now) for i in range(4)}

    assert {name: (e.reason, e.queue_position) for name, e in told.items()} == {
        "a0": ("step 0 is generated and is being read for tool calls", None),
        "a1": ("step 0 runs python", None),
        "a2": ("step 0 generates on w0", None),
        "a3": ("1 of 1 slots of w0 are taken; next in line", 0),
    }
    assert told["a1"].since_s == 0.0
    assert told["a0"].since_s == 2.0


def test_explain_names_who_is_ahead_and_a_pause() -> None:
    """Behind whom it waits, and that nobody moves while dispatch is paused."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 3)
    rig.send(DispatchPaused())

    told = rig.plane.explain(TrajectoryId("a2"), rig.now)

    assert told.reason == "dispatch is paused; 1 ahead of it, the last of them a1 at w0"
    assert told.queue_position == 1


def test_queries_of_what_is_unknown_say_so() -> None:
    """Unknown names are NotFound."""
    rig = Rig()

    with pytest.raises(NotFound, match="no open trajectory z"):
        rig.plane.explain(TrajectoryId("z"), 0.0)
    with pytest.raises(NotFound, match="no worker z"):
        rig.plane.queue(WorkerId("z"), 1)


def test_batch_phases_count_finished_ones_while_the_batch_is_open() -> None:
    """The phases of a batch add up to its size until the last has finished."""
    rig = Rig(slots=1)
    rig.pool(1)
    rig.submit("a", 3)
    rig.finish("a0")

    assert rig.plane.batch_phases(BatchId("a")) == {
        TrajectoryPhase.FINISHED: 1,
        TrajectoryPhase.GENERATING: 1,
        TrajectoryPhase.QUEUED: 1,
    }
    gauges = rig.plane.gauges()
    assert sum(gauges.trajectories.values()) == 2
    assert cancelled(rig.send(BatchCancelled(BatchId("a"), StopReason.CANCELLED))) == ["a1", "a2"]
