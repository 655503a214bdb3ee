"""The prefix cache against a recount of everything that it holds, after every operation."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from heddle.simulate.prefix_cache import Entry, PrefixCache
from heddle.types import GroupId, TrajectoryId

CAPACITY = 500
PROMPTS = {GroupId("g0"): 40, GroupId("g1"): 90, GroupId("g2"): 0}
"""Tokens that the members of each group share; the last group shares nothing."""
NAMES = [(TrajectoryId(f"{group}-t{i}"), group) for group in PROMPTS for i in range(3)]


class CacheMachine(RuleBasedStateMachine):
    """Generations begin, grow and end; copies come; things are pinned for transfers."""

    share_running = True

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(CAPACITY, share_running=self.share_running)
        self.running: dict[TrajectoryId, tuple[GroupId, Entry, int, int]] = {}
        """Group, entry, context at its begin, and tokens grown since."""

    @rule(who=st.sampled_from(NAMES), further=st.integers(1, 120))
    def begin(self, who: tuple[TrajectoryId, GroupId], further: int) -> None:
        name, group = who
        if name in self.running:
            return
        prompt = PROMPTS[group]
        cached = self.cache.cached_tokens(name, group, prompt)
        context = max(cached, prompt) + further
        needed = self.cache.needed_tokens(name, group, context)
        before = self.cache.pinned_tokens
        entry = self.cache.begin(name, group, prompt, context)
        self.running[name] = group, entry, context, 0

        assert self.cache.pinned_tokens - before == needed

    @rule(tokens=st.integers(1, 30))
    def grow(self, tokens: int) -> None:
        self.cache.grow(tokens * len(self.running))
        self.running = {n: (g, e, c, grown + tokens) for n, (g, e, c, grown) in self.running.items()}

    @precondition(lambda self: self.running)
    @rule(data=st.data(), shorter=st.integers(0, 20))
    def end(self, data: st.DataObject, shorter: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        group, entry, context, grown = self.running.pop(name)
        left = max(PROMPTS[group], context + grown - shorter)
        self.cache.end(entry, left, grown)
        found = self.cache.cached_tokens(name, group, PROMPTS[group])

        assert found <= left
        if self.cache.used_tokens < CAPACITY:
            assert found == left, "nothing is evicted while there is room"

    @rule(who=st.sampled_from(NAMES), tokens=st.integers(1, 200))
    def receive(self, who: tuple[TrajectoryId, GroupId], tokens: int) -> None:
        name, group = who
        if name not in self.running:
            self.cache.receive(name, group, PROMPTS[group], tokens)

    @rule(who=st.sampled_from(NAMES))
    def copy_out(self, who: tuple[TrajectoryId, GroupId]) -> None:
        entry = self.cache.entry(who[0])
        if entry is not None:
            before = self.cache.used_tokens, self.cache.pinned_tokens
            self.cache.pin(entry)
            self.cache.unpin(entry)
            assert (self.cache.used_tokens, self.cache.pinned_tokens) == before

    @invariant()
    def never_above_capacity_unless_pinned(self) -> None:
        used, pinned = self.cache.used_tokens, self.cache.pinned_tokens
        assert 0 <= pinned <= used
        assert used <= max(CAPACITY, pinned)

    @invariant()
    def pinned_is_what_runs(self) -> None:
        running = self.running.values()
        prompts = {id(entry.prompt): entry.prompt.tokens for _, entry, *_ in running if entry.prompt}
        own = sum(
            context - (entry.prompt.tokens if entry.prompt else 0) + grown
            for _, entry, context, grown in running
        )
        assert self.cache.pinned_tokens == sum(prompts.values()) + own

    @invariant()
    def used_is_what_is_there(self) -> None:
        entries = [entry for name, _ in NAMES if (entry := self.cache.entry(name)) is not None]
        grown = sum(grown for *_, grown in self.running.values())
        known = {id(entry.prompt): entry.prompt.tokens for entry in entries if entry.prompt is not None}
        for group, tokens in PROMPTS.items():
            stranger = TrajectoryId("nobody")
            found = self.cache.cached_tokens(stranger, group, tokens)
            if not any(entry.prompt and entry.group_id == group for entry in entries):  # nobody follows it
                known[hash(group)] = found
        assert self.cache.used_tokens == sum(entry.tokens for entry in entries) + sum(known.values()) + grown


class SlotCacheMachine(CacheMachine):
    """Prompts of running generations are not shared."""

    share_running = False


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotCache = SlotCacheMachine.TestCase
TestSlotCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
