"""Metrics: own registries, the documented names, bounded labels, and the price of a step."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from heddle.metrics import MAX_LABEL_VALUES, Metrics
from heddle.types import TrajectoryStatus


def samples_of(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and sorted labels."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_two_registries_share_nothing() -> None:
    """What one counts the other does not see."""
    one, other = Metrics(), Metrics()
    one.trajectory_finished(TrajectoryStatus.COMPLETED)

    assert samples_of(one)[("heddle_trajectories_total", (("status", "completed"),))] == 1
    assert ("heddle_trajectories_total", (("status", "completed"),)) not in samples_of(other)


def test_transfers_are_counted_by_what_became_of_them() -> None:
    """And the tokens that they brought."""
    metrics = Metrics()
    metrics.transfer_ended("moved", seconds=0.2, moved_tokens=90)
    metrics.transfer_ended("withdrawn", seconds=0.1, moved_tokens=0)
    found = samples_of(metrics)
    assert found[("heddle_transfers_total", (("outcome", "moved"),))] == 1
    assert found[("heddle_transfers_total", (("outcome", "withdrawn"),))] == 1
    assert found[("heddle_transferred_tokens_total", ())] == 90
    assert found[("heddle_transfer_seconds_count", ())] == 2


def test_moves_are_counted_by_outcome_and_refusals_by_reason() -> None:
    """And the rate of transfers is shown, 0 where nothing travels."""
    metrics = Metrics()
    metrics.moves_decided({"moved": 2, "failed": 1}, {"no_memory": 3}, 2500.0)
    metrics.moves_decided({"moved": 1}, {}, None)
    found = samples_of(metrics)
    assert found[("heddle_moves_total", (("outcome", "moved"),))] == 3
    assert found[("heddle_moves_total", (("outcome", "failed"),))] == 1
    assert found[("heddle_moves_refused_total", (("reason", "no_memory"),))] == 3
    assert found[("heddle_transfer_tokens_per_second", ())] == 0


def test_a_step_is_counted_with_its_tokens() -> None:
    """Tokens are told apart by kind, durations are histograms."""
    metrics = Metrics()
    metrics.step_finished(sampled_tokens=7, prompt_tokens=30, cached_tokens=20, generate_s=0.5, preemptions=2)
    metrics.queue_wait(0.2)
    metrics.tool_finished("python", "ok", run_s=0.1, queue_s=0.01)
    found = samples_of(metrics)

    tokens = [found[("heddle_tokens_total", (("kind", kind),))] for kind in ("sampled", "prompt", "cached")]
    assert tokens == [7, 30, 20]
    assert found[("heddle_steps_total", ())] == 1
    assert found[("heddle_preemptions_total", ())] == 2
    assert found[("heddle_step_seconds_sum", ())] == 0.5
    assert found[("heddle_queue_wait_seconds_count", ())] == 1
    assert found[("heddle_tool_seconds_count", (("outcome", "ok"), ("tool", "python")))] == 1
    assert found[("heddle_tool_queue_seconds_sum", ())] == 0.01


def test_a_worker_that_is_gone_shows_no_load() -> None:
    """The last value of a gauge would stay for ever, and its label would never be free again."""
    metrics = Metrics()
    for number in range(MAX_LABEL_VALUES + 1):
        metrics.worker_load(f"w{number}", running=1, waiting=1, resident=1)
        metrics.worker_gone(f"w{number}")
    metrics.worker_gone("unheard-of")
    metrics.worker_load("last", running=1, waiting=0, resident=1)
    shown = [labels for name, labels in samples_of(metrics) if name == "heddle_worker_running"]

    assert shown == [(("worker", "last"),)]


def test_workers_and_the_rest_have_their_names() -> None:
    """The gauges follow the worker; the remaining counters count."""
    metrics = Metrics()
    metrics.worker_load("w0", running=2, waiting=9, resident=12)
    metrics.worker_load("w0", running=1, waiting=0, resident=1)
    metrics.worker_restarted("w0")
    metrics.batch_finished(12.0)
    metrics.event_loop_lag(0.003)
    metrics.event_ignored("late_result")
    metrics.quarantined("equal_lengths")
    metrics.http_request("/v1/batches", "GET", 200)
    found = samples_of(metrics)

    worker = (("worker", "w0"),)
    gauges = [found[(f"heddle_worker_{name}", worker)] for name in ("running", "waiting", "resident")]
    assert gauges == [1, 0, 1]
    assert found[("heddle_worker_restarts_total", worker)] == 1
    assert found[("heddle_makespan_seconds_sum", ())] == 12
    assert found[("heddle_event_loop_lag_seconds_count", ())] == 1
    assert found[("heddle_ignored_events_total", (("reason", "late_result"),))] == 1
    assert found[("heddle_quarantined_total", (("gate", "equal_lengths"),))] == 1


def test_invented_tool_names_do_not_become_labels_without_end() -> None:
    """After so many distinct names, newcomers share one, and those known keep their own."""
    metrics = Metrics()
    for number in range(10 * MAX_LABEL_VALUES):
        metrics.tool_finished(f"tool-{number}", "invalid", run_s=0.0, queue_s=0.0)
        metrics.event_ignored(f"reason-{number}")
        metrics.http_request("unknown", f"VERB{number}", 405)
    metrics.tool_finished("tool-1", "invalid", run_s=0.0, queue_s=0.0)
    found = samples_of(metrics)

    tools = {dict(labels)["tool"] for name, labels in found if name == "heddle_tool_seconds_count"}
    reasons = {labels for name, labels in found if name == "heddle_ignored_events_total"}
    verbs = {labels for name, labels in found if name == "heddle_http_requests_total"}
    assert len(tools) == MAX_LABEL_VALUES + 1
    assert found[("heddle_tool_seconds_count", (("outcome", "invalid"), ("tool", "tool-1")))] == 2
    assert len(reasons) == MAX_LABEL_VALUES + 1
    assert len(verbs) == 1
