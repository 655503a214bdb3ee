"""Prefixes from one real engine process to another, and every way in which that can fail."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from engine_builders import GREEDY, ignore, make_request

from heddle.agent.ports import Generation
from heddle.engines.embedded.adapter import EmbeddedEngine
from heddle.engines.embedded.exchange import KvExchange
from heddle.engines.embedded.launcher import EmbeddedLauncher, EmbeddedWorker
from heddle.engines.embedded.model import ensure_model
from heddle.engines.embedded.transfer import HeldPrefix, SavedSlot, SlotExchange
from heddle.errors import EngineError, EngineRejected, EngineUnavailable, UnsupportedByEngine
from heddle.types import WorkerId, WorkerSpec

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SLOTS = 2
PREFIX_TOKENS = 80


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers of one launcher."""

    launcher: EmbeddedLauncher
    logs: Path
    source: EmbeddedWorker
    target: EmbeddedWorker

    async def launch(self, name: str) -> EmbeddedWorker:
        spec = WorkerSpec(WorkerId(name), tp_degree=1, slots=SLOTS)
        return await self.launcher.launch(spec, self.logs / f"{name}.log")

    @property
    def exchange(self) -> SlotExchange:
        assert self.source.engine.exchange is not None
        return self.source.engine.exchange

    @property
    def files(self) -> list[str]:
        """What lies in the directory of the transfers."""
        return [path.name for path in self.exchange.files.directory.glob("*.kv")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    logs = tmp_path_factory.mktemp("logs")
    model = ensure_model("smollm2-135m-instruct")
    launcher = EmbeddedLauncher(model, context_tokens=1024, ready_timeout_s=100)
    specs = [WorkerSpec(WorkerId(name), tp_degree=1, slots=SLOTS) for name in ("source", "target")]
    source, target = [await launcher.launch(spec, logs / f"{spec.worker_id}.log") for spec in specs]
    yield Pair(launcher, logs, source, target)
    await source.stop()
    await target.stop()


def draw(seed: int, tokens: int = PREFIX_TOKENS) -> list[int]:
    """A prompt like no other."""
    return random.Random(seed).sample(range(100, 40_000), tokens)


async def generate(engine: EmbeddedEngine, ids: Sequence[int], tokens: int = 8) -> Generation:
    request = make_request(f"g{random.random()}", prompt_ids=ids, max_new_tokens=tokens, sampling=GREEDY)
    return await engine.generate(request, ignore)


async def processing(engines: Sequence[EmbeddedEngine]) -> int:
    return sum([slot.is_processing for engine in engines for slot in await engine.slots()])


async def computed(engine: EmbeddedEngine, seed: int) -> list[int]:
    """A prompt and what was generated from it there: the context of a trajectory in its tools."""
    prompt = draw(seed)
    return [*prompt, *(await generate(engine, prompt)).token_ids]


async def test_a_moved_prefix_goes_on_as_if_it_had_stayed(pair: Pair) -> None:
    """The same tokens and logprobs, and nothing but the observation is computed at the target."""
    context = await computed(pair.source.engine, 1)
    transfer = await pair.source.engine.transfer(context, pair.target.engine)
    assert transfer.moved_tokens == len(context)
    assert transfer.nbytes is not None
    assert transfer.nbytes > len(context) * pair.exchange.token_bytes * 0.9
    longer = [*context, *draw(2, 5)]
    moved = await generate(pair.target.engine, longer)
    stayed = await generate(pair.source.engine, longer)
    assert moved.token_ids == stayed.token_ids
    assert moved.logprobs == pytest.approx(stayed.logprobs, abs=1e-5)
    assert moved.cached_tokens == len(context)
    assert stayed.cached_tokens == len(context), "the source's copy stays valid"
    assert pair.files == []


async def test_prefixes_swapped_out_on_either_side_are_not_lost(pair: Pair) -> None:
    """The source swaps it in again; what the target held in the slot that it gives up, it swaps out."""
    context = await computed(pair.source.engine, 10)
    for seed in range(11, 15):  # more than the source has slots
        await generate(pair.source.engine, draw(seed, 20), 1)
    at_home = [await computed(pair.target.engine, seed) for seed in (20, 21, 22)]
    transfer = await pair.source.engine.transfer(context, pair.target.engine)
    assert transfer.moved_tokens == len(context)
    for ids in (context, *at_home):
        again = await generate(pair.target.engine, [*ids, 198], 1)
        assert again.cached_tokens >= len(ids) - 1


async def test_a_move_waits_for_no_generation(pair: Pair) -> None:
    """Both servers have all their slots taken, and nobody is interrupted."""
    context = await computed(pair.source.engine, 30)
    engines = [pair.source.engine, pair.target.engine] * SLOTS
    busy = [asyncio.create_task(generate(e, draw(40 + n, 8), 100)) for n, e in enumerate(engines)]
    while await processing(engines[:2]) < len(busy):
        await asyncio.sleep(0.02)
    transfer = await pair.source.engine.transfer(context, pair.target.engine)
    assert transfer.moved_tokens == len(context)
    assert not any(task.done() for task in busy), "the move took as long as a generation"
    for task in busy:
        assert len((await task).token_ids) > 1


async def test_what_the_source_lost_is_not_computed_there_to_be_moved(pair: Pair) -> None:
    """It is refused after a chunk, and the source's slot is free again."""
    with pytest.raises(EngineRejected, match="lacks 400 of the prefix's 400 tokens"):
        await pair.source.engine.transfer(draw(50, 400), pair.target.engine)
    assert await processing([pair.source.engine]) == 0
    assert pair.files == []


async def test_a_move_that_is_cancelled_leaves_nothing_and_the_next_one_works(pair: Pair) -> None:
    """Cancelled at any moment of its course."""
    context = await computed(pair.source.engine, 60)
    for turns in (1, 3, 10, 30):
        move = asyncio.create_task(pair.source.engine.transfer(context, pair.target.engine))
        for _ in range(turns):
            await asyncio.sleep(0)
        move.cancel()
        with pytest.raises(asyncio.CancelledError):
            await move
        assert pair.files == []
    assert (await pair.source.engine.transfer(context, pair.target.engine)).moved_tokens == len(context)


async def test_there_is_no_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the budget, or in the file system: it is refused before anything is written."""
    context = await computed(pair.source.engine, 70)
    monkeypatch.setattr(pair.exchange.files, "_budget", 1000)
    with pytest.raises(EngineRejected, match="exceed what transfers may take: 1000"):
        await pair.source.engine.transfer(context, pair.target.engine)


@dataclass(frozen=True, slots=True)
class Cutting:
    """A source whose file is cut short, as by a file system that is full."""

    engine: EmbeddedEngine
    directory: Path

    async def hold(self, token_ids: Sequence[int], *, lacking_at_most: int) -> HeldPrefix:
        return await self.engine.hold(token_ids, lacking_at_most=lacking_at_most)

    async def save_slot(self, slot: int, name: str) -> SavedSlot:
        saved = await self.engine.save_slot(slot, name)
        os.truncate(self.directory / name, 100_000)
        return saved

    async def restore_slot(self, slot: int, name: str) -> int:
        raise AssertionError("nothing is restored into a source")


async def test_a_file_cut_short_never_reaches_the_target(pair: Pair) -> None:
    """It would kill the server."""
    context = await computed(pair.source.engine, 80)
    cutting = Cutting(pair.source.engine, pair.exchange.files.directory)
    with pytest.raises(EngineUnavailable, match="wrote 100000 of"):
        await pair.exchange.move(cutting, pair.target.engine, context)
    fresh = await generate(pair.target.engine, [*context, 198])
    assert fresh.cached_tokens < PREFIX_TOKENS
    assert fresh.token_ids == (await generate(pair.source.engine, [*context, 198])).token_ids
    assert pair.files == []


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_an_end_that_dies_fails_the_move_and_the_other_end_goes_on(pair: Pair, victim: str) -> None:
    """Killed while the move waits for it: an error at once, no file, and the survivor serves."""
    doomed = await pair.launch(f"doomed-{victim}")
    survivor = pair.target if victim == "source" else pair.source
    source, target = (doomed, survivor) if victim == "source" else (survivor, doomed)
    context = await computed(source.engine, 90)
    os.killpg(doomed.pid, signal.SIGSTOP)  # so that the move is under way when it dies
    move = asyncio.create_task(source.engine.transfer(context, target.engine))
    await asyncio.wait({move}, timeout=0.3)
    assert not move.done()
    os.killpg(doomed.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(move, timeout=10)
    assert pair.files == []
    await doomed.stop()
    assert (await generate(survivor.engine, draw(91, 8))).token_ids


async def test_servers_that_share_no_place_cannot_exchange(pair: Pair) -> None:
    """Of another launcher, or started without room for it."""
    alone = EmbeddedEngine(pair.target.url, slots=SLOTS)
    assert pair.source.engine.capabilities.kv_transfer
    assert not alone.capabilities.kv_transfer
    for source, target in ((pair.source.engine, alone), (alone, pair.target.engine)):
        with pytest.raises(UnsupportedByEngine, match="share no place"):
            await source.transfer([1, 2, 3], target)
    await alone.close()


@dataclass(slots=True)
class Scripted:
    """An end that answers as it is told."""

    saves: int = 3
    restores: int = 3
    written: bytes = b"12345"
    says: int = 5
    directory: Path = Path()

    async def hold(self, token_ids: Sequence[int], *, lacking_at_most: int) -> HeldPrefix:
        return HeldPrefix(0, len(token_ids))

    async def save_slot(self, slot: int, name: str) -> SavedSlot:
        if self.written:
            (self.directory / name).write_bytes(self.written)
        return SavedSlot(self.saves, self.says)

    async def restore_slot(self, slot: int, name: str) -> int:
        return self.restores


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (Scripted(saves=0), "the source saved 0 of 3 tokens"),
        (Scripted(written=b"", says=0), "the source wrote 0 of 0 bytes for 3 tokens"),
        (Scripted(written=b"123"), "the source wrote 3 of 5 bytes for 3 tokens"),
        (Scripted(restores=2), "the target restored 2 of 3 tokens"),
    ],
)
async def test_numbers_that_do_not_agree_fail_the_move(tmp_path: Path, end: Scripted, message: str) -> None:
    """A server that is set up wrongly saves nothing, and calls that a success."""
    exchange = SlotExchange(KvExchange(budget_bytes=1 << 20, parent=tmp_path), token_bytes=10)
    end.directory = exchange.files.directory
    with pytest.raises(EngineError, match=message):
        await exchange.move(end, end, [1, 2, 3])
    assert list(exchange.files.directory.glob("*.kv")) == []
