"""What Heddle counts, for Prometheus. One registry per ``Metrics``: nothing global, nothing shared.

Label values that come from outside (tools, workers, reasons) are bounded: after ``MAX_LABEL_VALUES``
distinct ones, newcomers are counted as ``other``. The children of a label are looked up once and kept,
so that a step costs a few microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from heddle.types import TrajectoryStatus, Trust

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

MAX_LABEL_VALUES = 64
"""Distinct values of one label; a model can invent tool names without end."""

OTHER = "other"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_MAKESPAN_SECONDS = (1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)

C_co = TypeVar("C_co", covariant=True)


class _Labelled(Protocol[C_co]):
    def labels(self, *labelvalues: str) -> C_co: ...

    def remove(self, *labelvalues: str) -> None: ...


class _Family(Generic[C_co]):
    """A metric with labels whose children are kept, and whose number of children is bounded."""

    def __init__(self, metric: _Labelled[C_co], *, limit: int = MAX_LABEL_VALUES) -> None:
        self._metric = metric
        self._limit = limit
        self._children: dict[tuple[str, ...], C_co] = {}

    def of(self, *values: str) -> C_co:
        """The child of these values; of ``other`` where there are too many already.

        The first value is the one that is bounded; those after it come from fixed sets.
        """
        child = self._children.get(values)
        if child is None:
            if len(self._children) >= self._limit:
                values = (OTHER, *values[1:])
            child = self._children.setdefault(values, self._metric.labels(*values))
        return child

    def drop(self, *values: str) -> None:
        """Forget the child of these values, if there is one: what it measured is gone."""
        if self._children.pop(values, None) is not None:
            self._metric.remove(*values)


class Metrics:
    """Every metric of one Heddle process. Times are seconds."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"heddle_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"heddle_{name}", text, labels, registry=registry, buckets=buckets)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"heddle_{name}", text, labels, registry=registry)

        self._trajectories = _Family(counter("trajectories_total", "Finished trajectories.", "status"))
        self._steps = counter("steps_total", "Finished steps.")
        self._preemptions = counter("preemptions_total", "Generations that gave way to another trajectory.")
        tokens = _Family(counter("tokens_total", "Tokens: sampled, prompt, cached.", "kind"))
        self._sampled, self._prompt, self._cached = map(tokens.of, ("sampled", "prompt", "cached"))
        self._queue_wait = histogram("queue_wait_seconds", "From wanting to generate to a slot.")
        self._step = histogram("step_seconds", "One generation, from the slot to its last token.")
        self._tool = _Family(
            histogram("tool_seconds", "Run time of tool calls.", "tool", "outcome"),
            limit=4 * MAX_LABEL_VALUES,
        )
        self._tool_names: set[str] = set()
        self._tool_queue = histogram("tool_queue_seconds", "Wait of a tool call for its turn.")
        self._running = _Family(gauge("worker_running", "Generations that run.", "worker"))
        self._waiting = _Family(gauge("worker_waiting", "Trajectories that queue.", "worker"))
        self._resident = _Family(gauge("worker_resident", "Trajectories at home here.", "worker"))
        self._restarts = _Family(counter("worker_restarts_total", "Restarts after a crash.", "worker"))
        self._cache_hits = _Family(
            gauge("worker_cache_hit_ratio", "Share of prompt tokens not computed again, lately.", "worker")
        )
        self._step_base = _Family(
            gauge("worker_step_base_seconds", "A decoding step, apart from its batch.", "worker")
        )
        self._step_slope = _Family(
            gauge("worker_step_seconds_per_generation", "What each running generation adds.", "worker")
        )
        self._pace = _Family(gauge("worker_pace_ratio", "Step time over the one expected.", "worker"))
        self._behind = _Family(gauge("worker_behind", "1 where it is much slower than expected.", "worker"))
        self._failures = _Family(counter("generation_failures_total", "Generations that failed.", "reason"))
        self._circuits = _Family(
            counter("circuit_breaks_total", "Workers replaced because generations failed in a row.", "worker")
        )
        self._late = _Family(
            counter("late_results_total", "Ignored: of an attempt that was given up.", "kind")
        )
        self._store_refused = _Family(counter("store_refused_total", "Writes that were refused.", "reason"))
        self._full_disks = counter("store_full_disks_total", "Times that the store found its disk full.")
        self._store_waiting = gauge("store_waiting", "Writes that wait for their commit.")
        self._makespan = histogram(
            "makespan_seconds", "From a batch's submission to its last trajectory.", buckets=_MAKESPAN_SECONDS
        )
        self._lag = histogram("event_loop_lag_seconds", "How late the event loop was.", buckets=_LAG_SECONDS)
        self._requests = _Family(
            counter("http_requests_total", "Requests to the REST surface.", "route", "method", "code"),
            limit=8 * MAX_LABEL_VALUES,
        )
        self._ignored = _Family(counter("ignored_events_total", "Late or foreign events.", "reason"))
        self._trust = {
            "tail_recall": gauge("prediction_tail_recall", "Of the longest fifth, the share predicted so."),
            "rank_correlation": gauge("prediction_rank_correlation", "Of predicted and true lengths."),
            "coverage": gauge("prediction_coverage", "Share of true lengths in intervals that promise 0.8."),
            "samples": gauge("prediction_samples", "Finished trajectories that these were measured on."),
        }
        self._quarantined = _Family(counter("quarantined_total", "Trajectories kept back.", "gate"))
        self._transfers = _Family(
            counter("transfers_total", "Attempts to bring a prefix to another worker.", "outcome")
        )
        self._transferred = counter("transferred_tokens_total", "Tokens of prefixes that were brought.")
        self._transfer = histogram("transfer_seconds", "From its order to its end.", buckets=_SECONDS)
        self._transfer_rate = gauge(
            "transfer_tokens_per_second", "How fast prefixes are taken to travel; 0 where they do not."
        )
        self._moves = _Family(
            counter("moves_total", "Moves that were accepted, by what became of them.", "outcome")
        )
        self._moves_refused = _Family(
            counter("moves_refused_total", "Moves that were proposed and refused.", "reason")
        )
        self._reshapes = _Family(
            counter("reshapes_total", "Changes of the pool for last trajectories, by what became.", "outcome")
        )
        self._worker_start = gauge("worker_start_seconds", "The last start of a worker by a reshape.")

    def trajectory_finished(self, status: TrajectoryStatus) -> None:
        """A trajectory was committed with this final status."""
        self._trajectories.of(status.value).inc()

    def step_finished(
        self,
        *,
        sampled_tokens: int,
        prompt_tokens: int,
        cached_tokens: int,
        generate_s: float,
        preemptions: int = 0,
    ) -> None:
        """One step was generated; ``generate_s`` runs from its slot to its last token."""
        self._steps.inc()
        self._preemptions.inc(preemptions)
        self._sampled.inc(sampled_tokens)
        self._prompt.inc(prompt_tokens)
        self._cached.inc(cached_tokens)
        self._step.observe(generate_s)

    def transfer_ended(self, outcome: str, *, seconds: float, moved_tokens: int) -> None:
        """A prefix was brought to another worker, or not: moved, withdrawn, failed."""
        self._transfers.of(outcome).inc()
        self._transferred.inc(moved_tokens)
        self._transfer.observe(seconds)

    def moves_decided(
        self, moves: Mapping[str, int], refused: Mapping[str, int], tokens_per_s: float | None
    ) -> None:
        """Since the last call: moves by outcome, refused ones by reason; and how fast prefixes travel."""
        for outcome, count in moves.items():
            self._moves.of(outcome).inc(count)
        for reason, count in refused.items():
            self._moves_refused.of(reason).inc(count)
        self._transfer_rate.set(tokens_per_s or 0.0)

    def reshapes_ended(self, reshapes: Mapping[str, int], start_s: float | None) -> None:
        """Since the last call, by outcome; and what the last start took."""
        for outcome, count in reshapes.items():
            self._reshapes.of(outcome).inc(count)
        self._worker_start.set(start_s or 0.0)

    def queue_wait(self, seconds: float) -> None:
        """A trajectory got its slot after this time."""
        self._queue_wait.observe(seconds)

    def tool_finished(self, tool: str, outcome: str, *, run_s: float, queue_s: float) -> None:
        """A tool call ended; ``tool`` is as the model named it."""
        if tool not in self._tool_names:
            if len(self._tool_names) >= MAX_LABEL_VALUES:
                tool = OTHER
            else:
                self._tool_names.add(tool)
        self._tool.of(tool, outcome).observe(run_s)
        self._tool_queue.observe(queue_s)

    def worker_load(self, worker_id: str, *, running: int, waiting: int, resident: int) -> None:
        """What a worker has to do now."""
        self._running.of(worker_id).set(running)
        self._waiting.of(worker_id).set(waiting)
        self._resident.of(worker_id).set(resident)

    def worker_restarted(self, worker_id: str) -> None:
        """A worker came back after a crash."""
        self._restarts.of(worker_id).inc()

    def cache_hit_rate(self, worker_id: str, share: float) -> None:
        """How much of its prompts a worker finds in its cache."""
        self._cache_hits.of(worker_id).set(share)

    def step_line(self, worker_id: str, base_s: float, per_generation_s: float) -> None:
        """How long a worker's decoding steps take, by their batch."""
        self._step_base.of(worker_id).set(base_s)
        self._step_slope.of(worker_id).set(per_generation_s)

    def pace(self, worker_id: str, ratio: float, *, behind: bool) -> None:
        """How a worker's step times compare with those expected."""
        self._pace.of(worker_id).set(ratio)
        self._behind.of(worker_id).set(behind)

    def generation_failed(self, reason: str) -> None:
        """A generation failed, and its step goes on elsewhere or later."""
        self._failures.of(reason).inc()

    def came_late(self, kind: str) -> None:
        """Something came of an older attempt at what was begun anew: ``tokens``, or a ``tool``'s result."""
        self._late.of(kind).inc()

    def circuit_opened(self, worker_id: str) -> None:
        """A worker is replaced because it does nothing but fail."""
        self._circuits.of(worker_id).inc()

    def store_worked(self, *, late: int, conflicting: int, full_disks: int, waiting: int) -> None:
        """What the store refused, how often its disk was full (since the last call), and what waits now."""
        self._store_refused.of("late").inc(late)
        self._store_refused.of("conflicting").inc(conflicting)
        self._full_disks.inc(full_disks)
        self._store_waiting.set(waiting)

    def worker_gone(self, worker_id: str) -> None:
        """A worker was stopped for good: its load is no longer shown, and its label is free again."""
        speed = (self._cache_hits, self._step_base, self._step_slope, self._pace, self._behind)
        for load in (self._running, self._waiting, self._resident, *speed):
            load.drop(worker_id)

    def predictions_judged(self, trust: Trust | None) -> None:
        """How right predictions have proved lately; all 0 where nobody knows."""
        for name, measured in self._trust.items():
            measured.set(0.0 if trust is None else asdict(trust)[name])

    def batch_finished(self, makespan_s: float) -> None:
        """The last trajectory of a batch ended."""
        self._makespan.observe(makespan_s)

    def event_loop_lag(self, seconds: float) -> None:
        """The event loop ran a timer this late."""
        self._lag.observe(seconds)

    def http_request(self, route: str, method: str, code: int) -> None:
        """A request was answered; ``route`` is the template, never the caller's path."""
        self._requests.of(route, _METHODS.get(method, OTHER), str(code)).inc()

    def event_ignored(self, reason: str) -> None:
        """The control plane was told something that no longer matters."""
        self._ignored.of(reason).inc()

    def quarantined(self, gate: str) -> None:
        """A trajectory failed this admission gate."""
        self._quarantined.of(gate).inc()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


_METHODS = {method: method for method in ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")}
