"""The dashboard in a real browser: it shows what happens, stays live, and runs nothing of a model's."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Page, find_chromium, open_page
from rest_harness import QUICK, make_batch, make_server
from scripted_service import ScriptedService

from heddle.types import Message

CHROMIUM = find_chromium()

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: THE DASHBOARD IS NOT TESTED")

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202e"


async def submit(service: ScriptedService, page: Page, base: str) -> None:
    """Submit from within the page, as its own origin."""
    body = make_batch(batch_id="shown", samples_per_prompt=3)
    status = await page.evaluate(
        f"fetch('{base}/v1/batches', {{method: 'POST', body: JSON.stringify({body}), headers: "
        "{'Content-Type': 'application/json', Authorization: 'Bearer secret'}}).then(r => r.status)"
    )
    assert status == 201
    assert "shown" in service.known


async def test_the_dashboard_shows_a_batch_live_and_harmless(tmp_path: Path) -> None:
    """Token, live rows, hostile text as text, a narrow window without sideways scrolling."""
    service = ScriptedService()
    assert CHROMIUM is not None
    server = make_server(service, token="secret", timing=QUICK)
    async with server, open_page(CHROMIUM, tmp_path / "profile") as page:
        await page.show(server.url)
        await page.wait_for("!document.getElementById('login').hidden")
        page.problems.clear()  # the refused request without a token is in the browser's log
        await page.evaluate("document.getElementById('token').value = 'secret'")
        await page.evaluate("document.querySelector('#login button').click()")
        await page.wait_for("document.getElementById('link').textContent == 'live'")
        await submit(service, page, server.url)
        await page.wait_for("document.getElementById('batches').textContent.includes('0 / 3')")
        service.finish("shown", messages=[Message("assistant", HOSTILE)], environment=HOSTILE)
        await page.wait_for("document.querySelectorAll('#finished tr').length == 1")
        await page.wait_for("document.getElementById('batches').textContent.includes('1 / 3')")
        await page.evaluate("document.querySelector('#finished tr').click()")
        await page.wait_for("document.querySelector('#detail pre')")
        shown = await page.evaluate("document.querySelector('#detail pre').textContent")
        await page.show(server.url, width=400, height=800, dark=True)
        await page.wait_for("document.querySelectorAll('#finished tr').length == 1")
        widths = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        title = await page.evaluate("document.title")

    assert shown == HOSTILE.replace("\u202e", "\\u202e")
    assert title == "Heddle"
    assert widths[0] <= widths[1]
    assert page.problems == []
