"""Large bodies: accepted in full, with faults named, while the event loop goes on."""

from __future__ import annotations

import asyncio
import time

import orjson
from rest_harness import error_of, serving
from scripted_service import ScriptedService

BODY_BYTES = 64 * 1024 * 1024
PROMPTS = 20_000

JSON_HEADERS = {"Content-Type": "application/json"}


def large_body(**last: object) -> bytes:
    """A submission of some 12 MB whose last prompt has these fields, too."""
    prompts = [
        {"task": {"question": "q" * 500, "tests": ["t"] * 10}, "metadata": {"row": i}} for i in range(PROMPTS)
    ]
    prompts[-1] = {**prompts[-1], **last}
    return orjson.dumps({"batch_id": "large", "prompts": prompts})


async def longest_gap(stop: asyncio.Event) -> float:
    """The longest time for which the event loop did not come round."""
    longest, before = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return longest


async def test_a_large_submission_does_not_stop_the_loop() -> None:
    """Parsing and validating 20,000 prompts happens beside the loop, not on it."""
    body = large_body()
    service = ScriptedService()
    stop = asyncio.Event()
    async with serving(service, max_body_bytes=BODY_BYTES) as http:
        watching = asyncio.create_task(longest_gap(stop))
        started = time.perf_counter()
        response = await http.post("/v1/batches", content=body, headers=JSON_HEADERS)
        took_s = time.perf_counter() - started
        stop.set()
        gap_s = await watching

    assert response.status_code == 201
    assert response.json()["total"] == PROMPTS
    assert gap_s < max(0.3, took_s / 2)


async def test_a_fault_at_the_end_of_a_large_submission_is_named() -> None:
    """The path leads to the prompt, however many there are before it."""
    service = ScriptedService()
    async with serving(service, max_body_bytes=BODY_BYTES) as http:
        response = await http.post("/v1/batches", content=large_body(taks={}), headers=JSON_HEADERS)

    assert error_of(response) == (400, "unknown_field", f"prompts[{PROMPTS - 1}].taks")
    assert service.known == {}
