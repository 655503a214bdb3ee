"""Simulated engines against closed forms: alone, in full batches, with prompts in chunks, short of memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sim_builders import PREFILL_PER_S, make_hardware, make_trajectory, make_workload, step_s

from heddle.control.build import PlaneSettings
from heddle.simulate.hardware import Hardware, PrefillMode
from heddle.simulate.options import SimulationOptions, ToolModel
from heddle.simulate.result import SimulationResult
from heddle.simulate.simulator import simulate
from heddle.simulate.workload import WorkTrajectory

SLOTS = PlaneSettings(slots=8, kv_guard=False)


def play(
    trajectories: Sequence[WorkTrajectory],
    hardware: Hardware,
    *,
    settings: PlaneSettings = SLOTS,
    options: SimulationOptions | None = None,
) -> SimulationResult:
    """The invariants are checked after every event."""
    return simulate(
        make_workload(*trajectories),
        settings,
        hardware,
        seed=0,
        configuration="test",
        options=options or SimulationOptions(check_every=1),
    )


def decode_s(batch: int, contexts: Sequence[int], steps: int) -> float:
    """Steps one by one, each member's context one longer each time."""
    mean = sum(contexts) / len(contexts)
    return sum(step_s(batch, mean + i) for i in range(steps))


class TestDecoding:
    """Steps, batches, and their interference."""

    def test_one_trajectory_alone(self) -> None:
        outcome = play([make_trajectory("t", [301], prompt=250)], make_hardware()).outcomes[0]

        assert outcome.parts.prefill_s == pytest.approx(250 / PREFILL_PER_S)
        assert outcome.parts.decode_base_s == pytest.approx(decode_s(1, [251], 300))
        assert outcome.parts.interference_s == pytest.approx(0.0, abs=1e-9)
        assert outcome.finished_at == pytest.approx(outcome.parts.prefill_s + outcome.parts.decode_base_s)

    def test_a_full_batch(self) -> None:
        result = play([make_trajectory(f"t{i}", [201], prompt=64) for i in range(8)], make_hardware())
        prefill = 8 * 64 / PREFILL_PER_S

        assert result.makespan_s == pytest.approx(prefill + decode_s(8, [65] * 8, 200))
        assert {outcome.finished_at for outcome in result.outcomes} == {result.makespan_s}
        assert result.workers[0].busy_s == pytest.approx(result.makespan_s)
        for outcome in result.outcomes:
            assert outcome.parts.decode_base_s == pytest.approx(decode_s(1, [65], 200))

    def test_a_batch_that_drains(self) -> None:
        result = play(
            [make_trajectory(f"t{i}", [101 + 100 * i], prompt=10) for i in range(3)], make_hardware()
        )
        prefill = 30 / PREFILL_PER_S
        expected = prefill
        for ended, at in enumerate((0, 100, 200)):
            expected += decode_s(3 - ended, [11 + at], 100)

        assert result.makespan_s == pytest.approx(expected)

    def test_who_waits_begins_where_another_ends(self) -> None:
        hardware = make_hardware()
        work = [make_trajectory("a", [51], prompt=10), make_trajectory("b", [31], prompt=10)]
        result = play(work, hardware, settings=PlaneSettings(slots=1))
        first = 10 / PREFILL_PER_S + decode_s(1, [11], 50)

        assert result.outcomes[0].finished_at == pytest.approx(first)
        assert result.outcomes[1].parts.queue_s == pytest.approx(first)
        assert result.makespan_s == pytest.approx(first + 10 / PREFILL_PER_S + decode_s(1, [11], 30))

    def test_a_larger_degree_is_faster(self) -> None:
        work = [make_trajectory("t", [100])]
        one = play(work, make_hardware(gpus=2, degrees=(1, 2)), settings=PlaneSettings(pool="1+1"))
        two = play(work, make_hardware(gpus=2, degrees=(1, 2)), settings=PlaneSettings(pool="2"))

        assert one.makespan_s == pytest.approx(2 * two.makespan_s)
        assert [worker.tp_degree for worker in two.workers] == [2]

    def test_an_arrival_joins_at_the_next_boundary(self) -> None:
        work = [make_trajectory("a", [1001], prompt=1), make_trajectory("b", [2], prompt=1, arrival_s=2.0037)]
        late = play(work, make_hardware()).outcomes[1]
        steps = 0
        boundary = step_s(1)  # a prompt of one token takes one pass over the weights
        while boundary < 2.0037:
            steps += 1
            boundary += step_s(1, 1 + steps)

        assert late.parts.queue_s == 0.0
        assert late.parts.prefill_s == pytest.approx(boundary - 2.0037 + step_s(1))

    def test_a_slot_is_free_after_the_abort(self) -> None:
        work = [make_trajectory("long", [10, 900], prompt=10), make_trajectory("short", [400], prompt=10)]
        settings = PlaneSettings(scheduler="progressive", predictor="oracle", slots=1)
        result = play(work, make_hardware(abort_s=0.2), settings=settings)
        long, short = result.outcomes
        alone = play(work[:1], make_hardware(abort_s=0.2), settings=settings).outcomes[0]

        assert (short.preemptions, long.preemptions) == (1, 0)
        assert 0.2 <= long.parts.queue_s <= 0.2 + step_s(1, 500)
        assert long.finished_at == pytest.approx(alone.finished_at + long.parts.queue_s)
        assert short.generated_tokens == 400
        assert short.recomputed_tokens == 0, "its prefix stayed in the cache"


class TestPrefill:
    """Chunks, and what they do to those that decode."""

    @pytest.mark.parametrize("mode", list(PrefillMode))
    def test_a_prompt_takes_its_tokens_in_any_mode(self, mode: PrefillMode) -> None:
        hardware = make_hardware(mode=mode, chunk_tokens=64, prefill_request_s=0.03)
        outcome = play([make_trajectory("t", [1], prompt=1000)], hardware).outcomes[0]

        assert outcome.finished_at == pytest.approx(0.03 + 1000 / PREFILL_PER_S)
        assert outcome.computed_tokens == 1000

    def test_exclusive_prefill_stops_decoding(self) -> None:
        work = [
            make_trajectory("a", [501], prompt=1),
            make_trajectory("b", [1], prompt=2000, arrival_s=1.0),
        ]
        alone = play(work[:1], make_hardware(chunk_tokens=100)).outcomes[0]
        first = play(work, make_hardware(chunk_tokens=100)).outcomes[0]

        assert first.finished_at - alone.finished_at == pytest.approx(2000 / PREFILL_PER_S)
        assert first.parts.interference_s == pytest.approx(2000 / PREFILL_PER_S)

    def test_mixed_chunks_carry_a_token_of_each(self) -> None:
        work = [
            make_trajectory("a", [501], prompt=1),
            make_trajectory("b", [1], prompt=2000, arrival_s=1.0),
        ]
        hardware = make_hardware(chunk_tokens=100, mode=PrefillMode.MIXED)
        alone = play(work[:1], hardware).outcomes[0]
        first = play(work, hardware).outcomes[0]
        chunks_s = 20 * 100 / PREFILL_PER_S
        # Twenty chunks bring twenty of its tokens, which take one step each otherwise.
        saved_s = 20 * step_s(1)

        assert first.finished_at - alone.finished_at == pytest.approx(chunks_s - saved_s, abs=0.02)

    def test_prompts_are_served_in_order_and_share_chunks(self) -> None:
        work = [make_trajectory(f"t{i}", [1], prompt=40) for i in range(4)]
        result = play(work, make_hardware(chunk_tokens=80))

        assert [o.finished_at for o in result.outcomes] == pytest.approx([0.08, 0.08, 0.16, 0.16])

    def test_a_short_prompt_takes_a_pass_over_the_weights(self) -> None:
        assert play([make_trajectory("t", [1], prompt=2)], make_hardware()).makespan_s == pytest.approx(
            step_s(1)
        )


class TestMemory:
    """The prefix cache, its evictions, and generations that are retracted."""

    def test_a_step_computes_only_what_is_new(self) -> None:
        outcome = play(
            [make_trajectory("t", [50, 50, 50], prompt=300, observed=20)], make_hardware()
        ).outcomes[0]

        # Of the token sampled last nothing is in the cache, so it is computed with the observation.
        assert outcome.computed_tokens == 300 + 2 * (20 + 1)
        assert outcome.recomputed_tokens == 0

    def test_members_of_a_group_share_their_prompt(self) -> None:
        group = [make_trajectory(f"t{i}", [5], prompt=1000, group="g") for i in range(4)]
        shared = play(group, make_hardware())
        apart = play(group, make_hardware(share_prompts=False))

        assert sum(o.computed_tokens for o in shared.outcomes) == 1000 + 3
        assert sum(o.computed_tokens for o in apart.outcomes) == 4000
        assert all(o.recomputed_tokens == 0 for o in shared.outcomes)

    def test_slots_share_what_does_not_run(self) -> None:
        group = [make_trajectory(f"t{i}", [50], prompt=1000, group="g") for i in range(3)]
        hardware = make_hardware(share_running=False)
        result = play(group, hardware, settings=PlaneSettings(slots=2))

        assert [o.computed_tokens for o in result.outcomes] == [1000, 1000, 1]

    def test_an_evicted_context_is_computed_again(self) -> None:
        work = [
            make_trajectory("a", [10, 10], prompt=600, tool_s=20.0),
            make_trajectory("b", [10], prompt=600, arrival_s=5.0),
        ]
        outcome = play(work, make_hardware(kv_tokens=1000)).outcomes[0]
        kept = 1000 - (600 + 9)

        assert outcome.recomputed_tokens == 609 - kept
        assert outcome.computed_tokens == 600 + (620 - kept)

    def test_memory_that_runs_out_retracts_who_began_last(self) -> None:
        work = [make_trajectory(f"t{i}", [300], prompt=100) for i in range(3)]
        result = play(work, make_hardware(kv_tokens=1000))
        first, second, third = result.outcomes

        assert first.parts.queue_s == second.parts.queue_s == 0.0
        assert first.finished_at < third.finished_at
        assert third.parts.queue_s > 0.5
        assert third.recomputed_tokens > 0
        assert {o.generated_tokens for o in result.outcomes} == {300}

    def test_a_request_waits_for_memory(self) -> None:
        work = [make_trajectory("a", [100], prompt=800), make_trajectory("b", [100], prompt=800)]
        first, second = play(work, make_hardware(kv_tokens=1200)).outcomes

        assert second.parts.queue_s == pytest.approx(first.finished_at)

    def test_one_that_is_too_large_is_told(self) -> None:
        result = play([make_trajectory("t", [50], prompt=2000)], make_hardware(kv_tokens=1000))

        assert "1 generations were larger than the whole KV memory" in result.notes[0]
        assert result.outcomes[0].generated_tokens == 50


class TestTools:
    """Places, queues and cold sandboxes."""

    def test_tools_wait_for_a_place(self) -> None:
        work = [make_trajectory(f"t{i}", [5, 5], tool_s=3.0) for i in range(3)]
        options = SimulationOptions(check_every=1, tools=ToolModel(concurrency=1))
        waits = [o.parts.tool_queue_s for o in play(work, make_hardware(), options=options).outcomes]

        assert waits == pytest.approx([0.0, 3.0, 6.0])

    def test_a_sandbox_is_cold_once_and_again_after_a_while(self) -> None:
        work = [make_trajectory("t", [5] * 4, tool_s=[1.0, 1.0, 1.0])]
        cold = ToolModel(cold_start_s=2.0)
        forgets = ToolModel(cold_start_s=2.0, keep_warm_s=0.01)
        warm = ToolModel(cold_start_s=2.0, prewarmed=1)
        seconds = [
            play(work, make_hardware(), options=SimulationOptions(tools=tools)).outcomes[0].parts.tool_cold_s
            for tools in (cold, forgets, warm)
        ]

        assert seconds == pytest.approx([2.0, 6.0, 0.0])

    def test_overhead_is_between_engine_and_tools(self) -> None:
        work = [make_trajectory("t", [5, 5], tool_s=1.0)]
        parts = play(work, make_hardware(), options=SimulationOptions(overhead_s=0.25)).outcomes[0].parts

        assert parts.overhead_s == pytest.approx(0.5)
        assert parts.tool_run_s == pytest.approx(1.0)
