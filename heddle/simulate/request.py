"""One generation inside a simulated engine, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from heddle.simulate.prefix_cache import Entry
from heddle.types import GroupId, TrajectoryId


class Stage(Enum):
    """What a request is doing; names the account that its time is charged to."""

    SENT = auto()
    """On its way to the engine, and until an iteration that runs there is over."""
    WAITING = auto()
    """In the engine, for memory."""
    PREFILLING = auto()
    DECODING = auto()
    STOPPING = auto()
    """It was told to stop, and the engine has not let go yet."""
    OVER = auto()


@dataclass(slots=True, eq=False)
class Request:
    """From a grant until the slot is free again. Token counts are of this request unless said otherwise."""

    trajectory_id: TrajectoryId
    group_id: GroupId
    prompt_tokens: int
    """That it shares with its group; 0 where nothing is shared."""
    context_tokens: int
    """What is to be in the cache before the next token is sampled."""
    left_to_prefill: int
    """Of its context, what is not in the cache yet."""
    output_tokens: int
    """Still to sample."""
    known_tokens: int
    """Longest prefix of its trajectory that any worker has ever computed."""
    since: float
    """When its present stage began."""
    stage: Stage = Stage.SENT
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    base_s: float = 0.0
    """Of ``decode_s``: what its tokens would have taken alone."""
    stopping_s: float = 0.0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    """Found when it was first admitted."""
    sampled_tokens: int = 0
    """Before it was last admitted: more than 0 only after the engine took its memory away."""
    kept_tokens: int | None = None
    """Sampled when it was told to stop; ``None`` for one that runs to its end."""
    entry: Entry | None = None
    """Its memory, while it holds any."""
    begun: bool = False
    """Whether its prefill has begun since it was last admitted."""
    decoding: bool = False
    """Whether it takes part in decoding iterations."""
    start_mark: int = 0
    """Decoding iterations of its engine when it sampled its first token since it was last admitted."""
    finish_mark: int = 0

    def enter(self, stage: Stage, now: float) -> None:
        """Charge the time since the last change to the stage that ends."""
        elapsed = now - self.since
        match self.stage:
            case Stage.SENT | Stage.PREFILLING:
                self.prefill_s += elapsed
            case Stage.WAITING:
                self.queue_s += elapsed
            case Stage.DECODING:
                self.decode_s += elapsed
            case Stage.STOPPING:
                self.stopping_s += elapsed
            case Stage.OVER:
                pass
        self.stage = stage
        self.since = now
