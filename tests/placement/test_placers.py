"""Placers choose homes: what all have in common, and what each is for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.control.state import TrajectoryState, WorkerState
from heddle.errors import ConfigError
from heddle.placement import PLACERS, PlacerOptions, make_placer
from heddle.placement.length_aware import remaining_lengths
from heddle.planning.profile import DegreeProfile, Profile
from heddle.types import BatchId, GroupId, Prediction, TrajectoryId, TrajectoryPhase, Trust, WorkerId

NAMES = tuple(PLACERS)
BY_LENGTH = ("presorted_dp", "exact", "drain")

PROFILE = Profile(
    "",
    "",
    1000.0,
    (
        DegreeProfile.measured(1, [(1, 0.010), (64, 0.030)], kv_capacity_tokens=200_000),
        DegreeProfile.measured(4, [(1, 0.004), (64, 0.012)], kv_capacity_tokens=900_000),
    ),
)
FULL = Trust(tail_recall=1.0, rank_correlation=1.0, coverage=0.9, samples=1000)
OPTIONS = PlacerOptions(PROFILE, lambda: FULL, seed=1)


def make_trajectory(name: str, *, remaining: float | None = None, spread: float = 1.0) -> TrajectoryState:
    """New, with a prediction whose quantiles are ``spread``-fold apart."""
    trajectory = TrajectoryState(TrajectoryId(name), BatchId("b"), GroupId("g"), 0.0, 100, 10, 0, 0, 0.0, 0.0)
    if remaining is not None:
        trajectory.prediction = Prediction(remaining, remaining / spread, remaining * spread, 0, "test")
    return trajectory


def make_worker(
    name: str,
    *,
    degree: int = 1,
    slots: int = 4,
    resident: int = 0,
    placed: int = 0,
    running: int = 0,
) -> WorkerState:
    worker = WorkerState(WorkerId(name), degree, slots, placed_total=placed, running=running)
    worker.residents = {t.trajectory_id: t for t in (make_trajectory(f"{name}-{i}") for i in range(resident))}
    return worker


def settle(worker: WorkerState, trajectory: TrajectoryState) -> None:
    """What the control plane does with the answer of ``place``."""
    worker.residents[trajectory.trajectory_id] = trajectory
    worker.placed_total += 1
    trajectory.worker_id = worker.worker_id


def place_all(
    placer: str, workers: list[WorkerState], batch: list[TrajectoryState], options: PlacerOptions = OPTIONS
) -> dict[str, list[str]]:
    """Who lives where, after one batch."""
    chosen = make_placer(placer, options)
    chosen.prepare(batch, workers)
    homes: dict[str, list[str]] = {worker.worker_id: [] for worker in workers}
    by_id = {worker.worker_id: worker for worker in workers}
    for trajectory in batch:
        if trajectory.worker_id is None:
            home = chosen.place(trajectory, workers)
            settle(by_id[home], trajectory)
            homes[home].append(trajectory.trajectory_id)
    return homes


POOLS = st.lists(
    st.tuples(st.sampled_from([1, 4]), st.integers(1, 64), st.integers(0, 40), st.integers(0, 5)),
    min_size=1,
    max_size=6,
)
LENGTHS = st.lists(st.none() | st.floats(0, 1e6), min_size=1, max_size=30)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(pool=POOLS, lengths=LENGTHS)
def test_every_trajectory_gets_a_home_that_is_there(
    name: str, pool: list[tuple[int, int, int, int]], lengths: list[float | None]
) -> None:
    """Whatever was predicted and whatever runs; the same again for the same."""
    workers = [
        make_worker(f"w{i}", degree=degree, slots=slots, resident=resident, running=running)
        for i, (degree, slots, resident, running) in enumerate(pool)
    ]
    batch = [make_trajectory(f"t{i}", remaining=length) for i, length in enumerate(lengths)]
    placer, again = make_placer(name, OPTIONS), make_placer(name, OPTIONS)
    placer.prepare(batch, workers)
    again.prepare(batch, workers)
    for trajectory in batch:
        home = placer.place(trajectory, workers)
        assert home == again.place(trajectory, workers)
        settle(workers[int(home[1:])], trajectory)
        moved = placer.rehome(trajectory, workers)
        assert moved is None or moved in {worker.worker_id for worker in workers}
        assert moved == again.rehome(trajectory, workers)


@pytest.mark.parametrize("name", NAMES)
def test_a_placer_is_known_by_its_name(name: str) -> None:
    """The name that makes it is the name that it says."""
    assert make_placer(name, OPTIONS).name == name


@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_equal_trajectories_spread(name: str) -> None:
    """Nobody sends a whole batch to the first worker; those that count send each the same number."""
    workers = [make_worker(f"w{i}", slots=64) for i in range(4)]
    homes = place_all(name, workers, [make_trajectory(f"t{i}", remaining=100.0) for i in range(200)])

    sizes = sorted(len(home) for home in homes.values())
    expected = {"least_load": [0, 0, 0, 200]}.get(name, [50, 50, 50, 50])
    if name.startswith("pinned"):
        assert min(sizes) > 30
    elif name == "least_load":
        assert sum(sizes) == 200  # requests count only once they run or wait
    else:
        assert sizes == expected


@pytest.mark.parametrize("name", NAMES)
def test_short_trajectories_do_not_all_land_on_the_first_worker(name: str) -> None:
    """Each ends before the next comes, so loads are always zero; placements spread them."""
    placer = make_placer(name, OPTIONS)
    workers = [make_worker(f"w{i}") for i in range(4)]
    chosen: Counter[str] = Counter()
    for index in range(200):
        trajectory = make_trajectory(f"t{index}")
        placer.prepare([trajectory], workers)
        home = placer.place(trajectory, workers)
        workers[int(home[1:])].placed_total += 1
        chosen[home] += 1

    assert min(chosen[f"w{i}"] for i in range(4)) >= (30 if name.startswith("pinned") else 50)


def test_sticky_least_loaded_prefers_the_fewest_residents_per_slot() -> None:
    """A worker with twice the slots carries twice the residents."""
    workers = [make_worker("w0", slots=2, resident=2), make_worker("w1", slots=8, resident=7)]

    assert make_placer("sticky_least_loaded").place(make_trajectory("t"), workers) == "w1"


def test_sticky_least_loaded_breaks_ties_by_placements_then_by_id() -> None:
    """Of equally loaded workers the one with fewer placements, and then the first."""
    placer = make_placer("sticky_least_loaded")
    trajectory = make_trajectory("t")

    assert placer.place(trajectory, [make_worker("w0", placed=3), make_worker("w1", placed=1)]) == "w1"
    assert placer.place(trajectory, [make_worker("w0"), make_worker("w1")]) == "w0"


def test_least_load_moves_at_every_step_and_stays_among_equals() -> None:
    """Only requests count; residents in their tools do not."""
    placer = make_placer("least_load")
    workers = [make_worker("w0", resident=9, running=1), make_worker("w1", running=2)]
    trajectory = make_trajectory("t")
    trajectory.worker_id = WorkerId("w1")

    assert placer.place(trajectory, workers) == "w0"
    assert placer.rehome(trajectory, workers) == "w0"
    workers[0].running = 2
    assert placer.rehome(trajectory, workers) is None


@pytest.mark.parametrize("name", ["pinned", "pinned_rebalance"])
def test_affinity_goes_by_the_id_alone(name: str) -> None:
    """Loads within bounds do not matter, and another process chooses the same."""
    idle = [make_worker(f"w{i}") for i in range(3)]
    busy = [make_worker("w0", running=30), make_worker("w1", running=1), make_worker("w2", running=5)]
    for index in range(50):
        trajectory = make_trajectory(f"b1-g{index}-t0")
        assert make_placer(name).place(trajectory, idle) == make_placer(name).place(trajectory, busy)
    homes = [make_placer(name).place(make_trajectory(f"b1-g{index}-t0"), idle) for index in range(4)]
    assert homes == ["w1", "w1", "w2", "w2"]


def test_affinity_is_given_up_beyond_the_threshold_only() -> None:
    """Thirty-two times the least loaded, an idle worker counting as one request."""
    placer = make_placer("pinned_rebalance")
    trajectory = make_trajectory("t")
    trajectory.worker_id = WorkerId("w0")
    for idle, busy, moved in ((0, 32, None), (0, 33, "w1"), (2, 64, None), (2, 65, "w1")):
        workers = [make_worker("w0", running=busy), make_worker("w1", running=idle)]
        assert placer.rehome(trajectory, workers) == moved


def test_sticky_margin_moves_where_the_difference_stays_above_the_margin() -> None:
    """After the move the home still has two more; never to and fro."""
    placer = make_placer("sticky_margin")
    for home, other, moved in ((3, 0, None), (4, 0, "w1"), (6, 3, None), (7, 3, "w1")):
        workers = [make_worker("w0", resident=home), make_worker("w1", resident=other)]
        trajectory = next(iter(workers[0].residents.values()))
        trajectory.worker_id = WorkerId("w0")
        assert placer.rehome(trajectory, workers) == moved
        if moved:
            del workers[0].residents[trajectory.trajectory_id]
            settle(workers[1], trajectory)
            assert placer.rehome(trajectory, workers) is None


def test_exact_places_beside_those_who_live_there_already() -> None:
    """Three long ones keep the first worker: newcomers of equal length go to the other two."""
    workers = [make_worker(f"w{i}", slots=8) for i in range(3)]
    residents = [make_trajectory(f"r{i}", remaining=1000.0) for i in range(3)]
    for resident in residents:
        settle(workers[0], resident)
    newcomers = [make_trajectory(f"n{i}", remaining=1000.0) for i in range(6)]

    homes = place_all("exact", workers, [*residents, *newcomers])

    assert {worker: len(names) for worker, names in homes.items()} == {"w0": 0, "w1": 3, "w2": 3}


@pytest.mark.parametrize("name", BY_LENGTH)
def test_who_waits_for_memory_may_go_to_a_worker_as_fast(name: str) -> None:
    """Not to a slower one, not while it does anything else; the paper's placer moves nobody."""
    slow, fast, other = (make_worker(f"w{i}", degree=degree) for i, degree in enumerate((1, 4, 4)))
    placer, waiting = make_placer(name, OPTIONS), make_trajectory("t")
    settle(fast, waiting)

    assert placer.rehome(waiting, [fast, other]) == (None if name == "presorted_dp" else "w2")
    assert placer.rehome(waiting, [slow, fast]) is None
    waiting.phase = TrajectoryPhase.IN_TOOL
    assert placer.rehome(waiting, [fast, other]) is None


@pytest.mark.parametrize("name", BY_LENGTH)
def test_the_longest_get_the_fast_worker_to_themselves(name: str) -> None:
    """A few long trajectories beside many short ones, one worker of degree 4 and three of degree 1."""
    workers = [make_worker(f"w{i}", slots=64) for i in range(3)] + [make_worker("w3", degree=4, slots=64)]
    batch = [make_trajectory(f"long{i}", remaining=20_000.0 + i) for i in range(4)]
    batch += [make_trajectory(f"short{i}", remaining=500.0 + i) for i in range(120)]

    homes = place_all(name, workers, batch)

    assert {"long0", "long1", "long2", "long3"} <= set(homes["w3"])
    assert any(len(homes[f"w{i}"]) > 10 for i in range(3))


@pytest.mark.parametrize("name", ["exact", "drain"])
def test_without_trust_lengths_do_not_matter(name: str) -> None:
    """All count as equal, so that equal workers get equally many, and long ones are not gathered."""
    batch = [make_trajectory(f"t{i}", remaining=10.0 * (i + 1), spread=2.0) for i in range(60)]
    for trust in (None, Trust(0.5, 0.2, 0.8, 1000), Trust(1.0, 1.0, 0.8, 3)):
        for trajectory in batch:
            trajectory.worker_id = None
        workers = [make_worker(f"w{i}", slots=64) for i in range(3)]
        homes = place_all(name, workers, batch, PlacerOptions(PROFILE, lambda t=trust: t))  # type: ignore[misc]
        assert [len(home) for home in homes.values()] == [20, 20, 20]


@pytest.mark.parametrize("name", BY_LENGTH)
def test_who_has_a_home_keeps_it_and_counts_in_the_plan(name: str) -> None:
    """Planning is for those without a home; nobody is placed twice."""
    workers = [make_worker("w0", slots=64), make_worker("w1", slots=64)]
    settled = [make_trajectory("old0", remaining=1000.0), make_trajectory("old1", remaining=999.0)]
    for trajectory in settled:
        settle(workers[0], trajectory)

    homes = place_all(name, workers, [*settled, make_trajectory("new0", remaining=10.0)])

    assert all(trajectory.worker_id == "w0" for trajectory in settled)
    assert sum(map(len, homes.values())) == 1


@pytest.mark.parametrize("name", BY_LENGTH)
def test_without_predictions_or_prices_loads_decide(name: str) -> None:
    """Nobody predicted, or a worker of a degree that the profile does not have."""
    unknown = [make_trajectory(f"t{i}") for i in range(8)]
    homes = place_all(name, [make_worker("w0"), make_worker("w1")], unknown)
    assert [len(home) for home in homes.values()] == [4, 4]

    known = [make_trajectory(f"t{i}", remaining=10.0) for i in range(8)]
    homes = place_all(name, [make_worker("w0"), make_worker("w1", degree=2)], known)
    assert [len(home) for home in homes.values()] == [4, 4]


@pytest.mark.parametrize("name", BY_LENGTH)
def test_planning_by_length_needs_a_profile(name: str) -> None:
    """Said when the plane is built, not when the first batch comes."""
    with pytest.raises(ConfigError, match=f"placer {name} needs a profile"):
        make_placer(name)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """A misspelt placer is a ConfigError."""
    with pytest.raises(ConfigError, match="sticky_margin"):
        make_placer("sticky_least_laoded")


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 10)), min_size=1, max_size=20), st.floats(0, 1))
def test_remaining_lengths_lie_between_the_quantiles_and_the_mean(
    predicted: list[tuple[float, float]], trust: float
) -> None:
    """Full trust takes predictions as they are; none makes all equal; the unpredicted count as the mean."""
    batch = [make_trajectory(f"t{i}", remaining=r, spread=s) for i, (r, s) in enumerate(predicted)]
    batch.append(make_trajectory("unknown"))

    full, none, between = (remaining_lengths(batch, level) for level in (1.0, 0.0, trust))

    assert full is not None
    assert none is not None
    assert between is not None
    assert full[:-1].tolist() == pytest.approx([r for r, _ in predicted])
    assert none.tolist() == pytest.approx([none[0]] * len(batch))
    assert (between >= -1e-9).all()
    assert remaining_lengths(batch[-1:], trust) is None


def test_what_was_generated_since_the_prediction_is_subtracted() -> None:
    """The three quantiles move together and never below zero."""
    trajectory = make_trajectory("t", remaining=100.0, spread=2.0)
    trajectory.generated_tokens = 60
    trajectory.phase = TrajectoryPhase.IN_TOOL

    lengths = remaining_lengths([trajectory], 1.0)

    assert lengths is not None
    assert lengths.tolist() == [40.0]


@pytest.mark.parametrize("name", ["exact", "drain"])
def test_where_memory_binds_nobody_is_gathered(name: str) -> None:
    """Contexts of all together exceed what the workers hold: an even spread whatever was predicted."""
    batch = [make_trajectory(f"t{i}", remaining=10.0 * (i + 1)) for i in range(60)]
    for trajectory in batch:
        trajectory.context_tokens = 20_000

    homes = place_all(name, [make_worker(f"w{i}", slots=64) for i in range(3)], batch)

    assert [len(home) for home in homes.values()] == [20, 20, 20]
