"""``progressive``: evidence counts, intervals hold, drift is noticed, state survives, memory is bounded."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from lives import life, marathons, population, stream

from heddle.control.ports import LengthPredictor
from heddle.errors import ConfigError
from heddle.predict import PREDICTORS, make_predictor
from heddle.predict.evaluation.recorded import view_of
from heddle.predict.evaluation.scores import Score, score
from heddle.predict.evaluation.stream import Said, play
from heddle.types import GroupId, JsonWritable, Prediction, StepView


def judged(said: list[Said]) -> Score:
    """Its score; there is one."""
    found = score(said)
    assert found is not None
    return found


def trained(name: str, *, count: int = 480) -> LengthPredictor:
    """A predictor that has seen so many trajectories of one population."""
    predictor = make_predictor(name)
    for _ in stream(predictor, population(1, count)):
        pass
    return predictor


def test_nothing_is_predicted_while_nothing_is_known() -> None:
    """The first batch begins without an estimate; soon there is one, and it does not pretend to know."""
    predictor = make_predictor("progressive")
    said = list(stream(predictor, population(1, 32)))
    assert all(s.prediction is None for s in said if s.steps_done == 0)
    early = [s.prediction for s in said if s.prediction is not None]
    assert early
    assert all(p.least_tokens == 0.0 and p.most_tokens is not None and p.most_tokens > 1e9 for p in early)


def test_all_evidence_beats_the_mean_of_the_step() -> None:
    """On a population where prompts and tool outcomes matter, in rank and in the tail."""
    fresh = population(2, 320)
    mean = judged(list(stream(trained("mean_by_step"), fresh)))
    progressive = judged(list(stream(trained("progressive"), fresh)))
    assert progressive.spearman > mean.spearman + 0.1
    assert progressive.recall_20 > mean.recall_20
    assert progressive.pinball < mean.pinball


@pytest.mark.parametrize("name", ["siblings", "tool_state"])
def test_each_source_alone_is_a_predictor(name: str) -> None:
    """And knows something that the mean of the step does not."""
    fresh = population(2, 320)
    mean = judged(list(stream(trained("mean_by_step"), fresh)))
    alone = judged(list(stream(trained(name), fresh)))
    assert alone.spearman > mean.spearman


def test_who_may_be_long_is_told_by_the_mean() -> None:
    """After an error one in five goes on twenty times as long, the others end sooner than after a success."""
    predictor = make_predictor("progressive")
    rng = random.Random(3)
    lives = []
    for index in range(480):
        failed = index % 2 == 0
        left = 260 if not failed else 4_000 if rng.random() < 0.2 else 200
        outputs = [100, rng.randint(left - 20, left + 20)]
        lives.append(life(f"t{index}", outputs, prompt=f"p{index}", outcome="error" if failed else "ok"))
    list(stream(predictor, lives))
    told = {}
    for outcome in ("error", "ok"):
        view = view_of(life(f"x-{outcome}", [1]), GroupId(outcome), known=False)
        view.steps_done, view.generated_tokens, view.context_tokens = 1, 100, 160
        view.last_step = StepView(100, ("tool",), (outcome,), 1.0, 10)
        (told[outcome],) = predictor.predict([view])
    error, success = told["error"], told["ok"]
    assert error is not None
    assert success is not None
    assert error.expected_tokens is not None
    assert success.expected_tokens is not None
    assert error.expected_tokens > 1.5 * success.expected_tokens
    assert error.remaining_tokens < 2.0 * success.remaining_tokens


def test_a_prompt_seen_in_an_earlier_batch_is_known() -> None:
    """Long prompts rank above short ones before their first step; a new prompt is in between."""
    predictor = make_predictor("prompt_history")
    for epoch in range(6):
        lives = [
            life(f"{epoch}-{p}-{i}", [40 * (1 + 9 * p)] * 2, prompt=f"p{p}") for p in (0, 1) for i in range(8)
        ]
        list(play(predictor, lives, {}, name=f"epoch {epoch}"))
    views = [view_of(life("x", [1], prompt=p), GroupId("new"), known=False) for p in ("p0", "new", "p1")]
    short, unknown, long = (p.remaining_tokens for p in predictor.predict(views) if p is not None)
    assert short < unknown < long


def test_a_sibling_that_ended_long_makes_the_others_long() -> None:
    """Evidence of the same group counts while the group runs."""
    predictor = trained("siblings")
    views = [view_of(life(f"s{i}", [1]), GroupId(f"g{i // 2}"), known=False) for i in range(4)]
    before = predictor.predict(views)
    for view, tokens in ((views[0], 5000), (views[2], 20)):
        view.steps_done, view.generated_tokens = 1, tokens
        predictor.observe_step(view)
        predictor.observe_finished(view)
    after = predictor.predict([views[1], views[3]])
    assert before[1] is not None
    assert before[3] is not None
    assert after[0] is not None
    assert after[1] is not None
    assert after[0].remaining_tokens > before[1].remaining_tokens
    assert after[1].remaining_tokens < before[3].remaining_tokens


def test_intervals_hold_what_they_promise() -> None:
    """Nine of ten on fresh trajectories, four of five for the inner interval; they are not just wide."""
    said = list(stream(trained("progressive", count=960), population(3, 960)))
    scored = judged(said)
    assert scored.coverage_90 is not None
    assert 0.85 <= scored.coverage_90 <= 0.95
    assert 0.72 <= scored.coverage_80 <= 0.88
    ratios = [
        p.most_tokens / max(1.0, p.least_tokens)
        for p in (s.prediction for s in said)
        if p is not None and p.most_tokens is not None and p.least_tokens is not None
    ]
    assert statistics.median(ratios) < 30.0


def test_quantiles_never_cross_and_never_pass_the_budget() -> None:
    """Whatever is predicted is ordered, finite and within what the trajectory may still generate."""
    predictor = trained("progressive")
    views = [view_of(recorded, GroupId(f"g{i}"), known=False) for i, recorded in enumerate(population(5, 64))]
    for view in views:
        view.max_tokens = 300
    for p in predictor.predict(views):
        assert p is not None
        assert p.least_tokens is not None
        assert p.most_tokens is not None
        assert 0.0 <= p.least_tokens <= p.low_tokens <= p.remaining_tokens
        assert p.remaining_tokens <= p.high_tokens <= p.most_tokens <= 300.0 + 1e-6
        assert p.remaining_steps is not None
        assert p.remaining_steps > 0.0
        assert p.tool_seconds is not None
        assert math.isfinite(p.tool_seconds)


def test_another_workload_under_the_same_name_is_noticed() -> None:
    """Ten times the steps from one moment on: after 4, trust is gone; after 50 the intervals hold again."""
    predictor = trained("progressive", count=960)
    view = view_of(life("open", [1]), GroupId("open"), known=False)
    predictor.predict([view])
    before = predictor.trust()
    assert before is not None
    assert before.tail_recall > 0.7
    changed = marathons(7, 150)
    list(stream(predictor, changed[:4], batch=1))
    assert predictor.trust() is None
    list(stream(predictor, changed[4:50], batch=1))
    after = predictor.trust()
    assert after is not None
    assert after.tail_recall < before.tail_recall - 0.3
    scored = judged(list(stream(predictor, changed[50:], batch=1)))
    assert scored.coverage_90 is not None
    assert scored.coverage_90 >= 0.85


def test_another_workload_is_noticed_before_any_of_it_has_ended() -> None:
    """Side by side: when most of a batch have outlived what was said of them, nothing said is trusted."""
    predictor = trained("progressive", count=960)
    views = [view_of(one, GroupId(one.prompt_id), known=False) for one in marathons(7, 16)]
    predictor.predict(views)
    assert predictor.trust() is not None
    for step in range(1, 13):
        for view in views:
            view.steps_done, view.generated_tokens, view.last_step = (
                step,
                130 * step,
                StepView(130, ("tool",)),
            )
            predictor.observe_step(view)
            predictor.predict([view])
    assert predictor.trust() is None


def test_a_workload_never_seen_has_no_trust() -> None:
    """However well another one is known."""
    predictor = trained("progressive")
    predictor.predict([view_of(life("x", [1], workload="other"), GroupId("g"), known=False)])
    assert predictor.trust() is None


@pytest.mark.parametrize("name", [n for n in PREDICTORS if "oracle" not in n and n != "mean_by_step"])
def test_what_was_learned_survives(name: str) -> None:
    """A predictor restored from a saved state says exactly what the saved one says, and goes on alike."""
    predictor, heir = trained(name, count=160), make_predictor(name)
    heir.restore(predictor.save())
    fresh = population(9, 64)
    assert list(stream(predictor, fresh)) == list(stream(heir, fresh))


def test_a_foreign_state_is_refused() -> None:
    """Of other sources, of another shape, and for a predictor that keeps none."""
    state = trained("siblings", count=64).save()
    foreigners: list[tuple[str, JsonWritable]] = [
        ("progressive", state),
        ("progressive", {"w": 3}),
        ("mean_by_step", state),
    ]
    for name, foreign in foreigners:
        with pytest.raises(ConfigError):
            make_predictor(name).restore(foreign)


def test_an_estimate_from_outside_counts_however_late() -> None:
    """It raises the estimate at once, and what was generated since is taken off it."""
    predictor = trained("progressive")
    view = view_of(life("x", [1]), GroupId("g"), known=False)
    (cold,) = predictor.predict([view])
    view.steps_done, view.generated_tokens = 1, 120
    view.last_step = StepView(120, ("tool",), ("ok",), 1.0, 10)
    predictor.observe_step(view)
    (step,) = predictor.predict([view])
    assert cold is not None
    assert step is not None
    late = predictor.refine(view, Prediction(9_000.0, 1.0, 1e5, 0, "features"))
    assert late is not None
    assert (late.made_after_step, late.model) == (1, "progressive")
    assert late.remaining_tokens > step.remaining_tokens
    assert predictor.refine(view, Prediction(9_000.0, 1.0, 1e5, 7, "features")) is None


def test_what_models_say_counts_from_the_first_batch_on() -> None:
    """Those that came before any mean was known to compare them with are learned from as they were meant."""
    lives = population(11, 320)
    told = {
        (t.trajectory_id, p.steps_done): (
            Prediction(float(t.total_tokens - p.generated_tokens), 1.0, 1e5, p.steps_done, "text"),
        )
        for t in lives
        for p in t.points
    }
    predictor = make_predictor("progressive")
    first, second = (list(play(predictor, half, told, name="b")) for half in (lives[:160], lives[160:]))
    assert first[0].prediction is None
    assert judged(second).spearman > 0.85


def test_the_same_history_gives_the_same_predictions() -> None:
    """Replays of event logs depend on it."""
    first, second = (list(stream(make_predictor("progressive"), population(4, 160))) for _ in range(2))
    assert first == second


def test_memory_does_not_grow() -> None:
    """What is learned of more trajectories takes no more room, but for prompts; nothing stays open."""
    predictor = make_predictor("progressive")
    sizes = []
    for part in range(4):
        list(stream(predictor, population(part, 400, samples=4), batch=64))
        saved = predictor.save()
        assert isinstance(saved, dict)
        sizes.append(len(str(saved["w"])))
    per_prompt = 100
    assert sizes[-1] - sizes[-2] <= 100 * per_prompt, "only the history of prompts may grow, up to its bound"
    assert predictor.trust() is None, "nothing is open"
