"""What one worker keeps of the contexts that it has computed, counted in tokens.

Each trajectory has an entry of its own for what follows the prompt that it shares with its group; the
prompt is an entry that lives as long as it is used or nothing more recent needs its place. Entries of
running generations are pinned. When the whole exceeds the capacity, those used longest ago lose tokens from
their end: what is left of a prefix is still a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from heddle.types import GroupId, TrajectoryId


@dataclass(slots=True, eq=False)
class Entry:
    """Tokens that follow each other. ``prompt`` is what they follow, if another entry holds it."""

    trajectory_id: TrajectoryId | None
    """``None`` for the prompt of a group."""
    group_id: GroupId
    tokens: int
    prompt: Entry | None = None
    children: int = 0
    """Of a prompt: entries that follow it."""
    pins: int = 0
    """Running generations and transfers that use it."""


class PrefixCache:
    """Owned by one simulated worker. Never more than ``capacity_tokens`` unless all of that is pinned."""

    def __init__(self, capacity_tokens: int | None, *, share_running: bool = True) -> None:
        """``share_running``: whether a prompt can be used that only running generations hold."""
        self._capacity = capacity_tokens
        self._share_running = share_running
        self._entries: dict[TrajectoryId, Entry] = {}
        self._prompts: dict[GroupId, Entry] = {}
        self._idle: OrderedDict[Entry, None] = OrderedDict()
        """Evictable, used longest ago first."""
        self.used_tokens = 0
        self.pinned_tokens = 0
        """Of these, tokens of running generations; a shared prompt counts once."""

    def cached_tokens(self, trajectory_id: TrajectoryId, group_id: GroupId, prompt_tokens: int) -> int:
        """How long a prefix of this trajectory is there. ``prompt_tokens`` it shares with its group."""
        entry = self._entries.get(trajectory_id)
        if entry is not None:
            return entry.tokens + (0 if entry.prompt is None else entry.prompt.tokens)
        prompt = self._prompts.get(group_id) if prompt_tokens else None
        return 0 if prompt is None or not self._can_share(prompt) else prompt.tokens

    def needed_tokens(self, trajectory_id: TrajectoryId, group_id: GroupId, context_tokens: int) -> int:
        """By how much pinning this context would raise ``pinned_tokens``."""
        entry = self._entries.get(trajectory_id)
        prompt = self._prompts.get(group_id) if entry is None else entry.prompt
        if entry is None and prompt is not None and not self._can_share(prompt):
            prompt = None
        shared = prompt.tokens if prompt is not None and prompt.pins else 0
        return max(0, context_tokens - shared)

    def begin(
        self, trajectory_id: TrajectoryId, group_id: GroupId, prompt_tokens: int, context_tokens: int
    ) -> Entry:
        """Pin ``context_tokens`` for a generation; they count as used from now on."""
        entry = self._entries.get(trajectory_id)
        if entry is None:
            entry = self._insert(trajectory_id, group_id, prompt_tokens)
        self.pin(entry)
        self._resize(entry, context_tokens)
        self.shrink()
        return entry

    def grow(self, tokens: int) -> None:
        """Running generations have become longer by so much together; ``end`` says which."""
        self.used_tokens += tokens
        self.pinned_tokens += tokens
        self.shrink()

    def end(self, entry: Entry, context_tokens: int, grown_tokens: int) -> None:
        """A generation is over: ``context_tokens`` of it stay, ``grown_tokens`` came through ``grow``."""
        self.used_tokens -= grown_tokens
        self.pinned_tokens -= grown_tokens
        self._resize(entry, context_tokens)
        self.unpin(entry)
        self.shrink()

    def pin(self, entry: Entry) -> None:
        """Keep it until it is unpinned as often."""
        self._pin_one(entry)
        if entry.prompt is not None:
            self._pin_one(entry.prompt)

    def unpin(self, entry: Entry) -> None:
        """The inverse; it is now the one used last."""
        if entry.prompt is not None:
            self._unpin_one(entry.prompt)
        self._unpin_one(entry)

    def entry(self, trajectory_id: TrajectoryId) -> Entry | None:
        """What is there of one trajectory, if anything."""
        return self._entries.get(trajectory_id)

    def receive(
        self, trajectory_id: TrajectoryId, group_id: GroupId, prompt_tokens: int, context_tokens: int
    ) -> None:
        """A prefix of this length came from another worker."""
        entry = self._entries.get(trajectory_id)
        if entry is None:
            entry = self._insert(trajectory_id, group_id, prompt_tokens)
        self._resize(entry, max(context_tokens, self.cached_tokens(trajectory_id, group_id, prompt_tokens)))
        self._list_idle(entry)
        self.shrink()

    def drop(self, trajectory_id: TrajectoryId) -> None:
        """Nobody will ask for it again. What is pinned stays."""
        entry = self._entries.get(trajectory_id)
        if entry is not None and not entry.pins:
            self._remove(entry)

    def shrink(self) -> None:
        """Evict until the whole fits, as far as anything can be evicted."""
        if self._capacity is None:
            return
        while self.used_tokens > self._capacity and self._idle:
            entry = next(iter(self._idle))
            excess = self.used_tokens - self._capacity
            if entry.tokens > excess:
                entry.tokens -= excess
                self.used_tokens -= excess
            else:
                self._remove(entry)

    def _insert(self, trajectory_id: TrajectoryId, group_id: GroupId, prompt_tokens: int) -> Entry:
        prompt = self._prompts.get(group_id)
        if prompt is not None and not self._can_share(prompt):
            prompt = None  # it computes one of its own, within its entry
        elif prompt_tokens:
            if prompt is None:
                prompt = self._prompts[group_id] = Entry(None, group_id, prompt_tokens)
                self.used_tokens += prompt_tokens
            elif prompt.tokens < prompt_tokens:
                self._lengthen(prompt, prompt_tokens - prompt.tokens)
            prompt.children += 1
            self._idle.pop(prompt, None)
        entry = self._entries[trajectory_id] = Entry(trajectory_id, group_id, 0, prompt)
        return entry

    def _can_share(self, prompt: Entry) -> bool:
        """Whether another member may use it: always, or while some follower of it does not run."""
        return self._share_running or not prompt.pins or prompt.children > prompt.pins

    def _resize(self, entry: Entry, context_tokens: int) -> None:
        shared = 0 if entry.prompt is None else entry.prompt.tokens
        self._lengthen(entry, max(0, context_tokens - shared) - entry.tokens)

    def _lengthen(self, entry: Entry, tokens: int) -> None:
        entry.tokens += tokens
        self.used_tokens += tokens
        if entry.pins:
            self.pinned_tokens += tokens

    def _pin_one(self, entry: Entry) -> None:
        if not entry.pins:
            self.pinned_tokens += entry.tokens
            self._idle.pop(entry, None)
        entry.pins += 1

    def _unpin_one(self, entry: Entry) -> None:
        entry.pins -= 1
        if not entry.pins:
            self.pinned_tokens -= entry.tokens
            self._list_idle(entry)

    def _list_idle(self, entry: Entry) -> None:
        """A prompt that something follows goes after it, never before."""
        if not entry.pins and not entry.children:
            self._idle[entry] = None
            self._idle.move_to_end(entry)

    def _remove(self, entry: Entry) -> None:
        self._idle.pop(entry, None)
        self.used_tokens -= entry.tokens
        if entry.trajectory_id is None:
            del self._prompts[entry.group_id]
            return
        del self._entries[entry.trajectory_id]
        prompt = entry.prompt
        if prompt is not None:
            prompt.children -= 1
            if not prompt.children and not prompt.pins:
                # As old as its last follower, which was the oldest of all: next to go.
                self._idle[prompt] = None
                self._idle.move_to_end(prompt, last=False)
