"""The published description: complete, consistent with the router, and true of the answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import SecretStr
from rest_harness import make_batch, serving
from scripted_service import ScriptedService

from heddle.api.app import make_app
from heddle.metrics import Metrics


async def fetch_document() -> dict[str, Any]:
    """The document as a server publishes it."""
    async with serving(ScriptedService()) as http:
        document: dict[str, Any] = (await http.get("/openapi.json")).json()
    return document


async def test_it_lists_every_route_of_the_router_and_no_other() -> None:
    """What the router serves is what the document says."""
    document = await fetch_document()
    app = make_app(ScriptedService(), token=SecretStr("x"), max_body_bytes=1000, metrics=Metrics())
    served = {(r.method.lower(), r.resource.canonical) for r in app.router.routes() if r.resource is not None}
    listed = {(method, path) for path, methods in document["paths"].items() for method in methods}

    assert served == listed


async def test_it_has_the_shape_of_openapi() -> None:
    """Operations have unique ids and answers; every reference leads somewhere; schemas are schemas."""
    document = await fetch_document()
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    ids = [operation["operationId"] for operation in operations]

    assert document["openapi"] == "3.1.0"
    assert len(set(ids)) == len(ids)
    for operation in operations:
        assert operation["summary"]
        assert operation["responses"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in find_references(document):
        assert isinstance(resolve(document, reference), dict)


async def test_every_protected_route_documents_its_errors() -> None:
    """401 and 500 are everywhere they can happen, and every error has the one body."""
    document = await fetch_document()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            assert "500" in responses, (method, path)
            assert ("401" in responses) == bool(operation["security"]), (method, path)
            for status, response in responses.items():
                if int(status) >= 400:
                    reference = response["content"]["application/json"]["schema"]["$ref"]
                    assert reference == "#/components/schemas/ErrorBody"
    posted = document["paths"]["/v1/batches"]["post"]
    assert {"201", "200", "400", "401", "403", "408", "409", "413", "415", "421", "500", "503"} == set(
        posted["responses"]
    )


@pytest.mark.parametrize(
    ("path", "template", "status"),
    [
        ("/v1/batches", "/v1/batches", 200),
        ("/v1/batches/b0", "/v1/batches/{batch_id}", 200),
        ("/v1/batches/b0/explain", "/v1/batches/{batch_id}/explain", 200),
        ("/v1/batches/none/explain", "/v1/batches/{batch_id}/explain", 404),
        ("/v1/quarantine?limit=1", "/v1/quarantine", 200),
        ("/v1/quarantine?limit=0", "/v1/quarantine", 400),
        ("/v1/batches/b0/trajectories", "/v1/batches/{batch_id}/trajectories", 200),
        ("/v1/trajectories/b0-g0-t0", "/v1/trajectories/{trajectory_id}", 200),
        ("/v1/trajectories/b0-g0-t1/explain", "/v1/trajectories/{trajectory_id}/explain", 200),
        ("/v1/workers", "/v1/workers", 200),
        ("/healthz", "/healthz", 200),
        ("/v1/batches/none", "/v1/batches/{batch_id}", 404),
        ("/v1/batches/-", "/v1/batches/{batch_id}", 400),
    ],
)
async def test_answers_are_as_described(path: str, template: str, status: int) -> None:
    """Real answers validate against the schema that the document gives them."""
    service = ScriptedService()
    async with serving(service) as http:
        await http.post("/v1/batches", json=make_batch(samples_per_prompt=2))
        service.finish("b0")
        response = await http.get(path)
        document = (await http.get("/openapi.json")).json()

    described = document["paths"][template]["get"]["responses"][str(status)]["content"]["application/json"]
    assert status == response.status_code
    schema = {**described["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())


async def test_every_route_has_its_line_in_the_documentation() -> None:
    """The page on REST shows each operation, so that nobody has to guess one."""
    page = (Path(__file__).parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")
    document = await fetch_document()
    for path, methods in document["paths"].items():
        example = re.sub(r"\\\{[a-z_]+\\\}", r"[a-z0-9-]+", re.escape(path))
        for method in methods:
            if path.startswith("/v1") and method == "delete":
                assert re.search(f"-X DELETE [$]HEDDLE{example}", page), (method, path)
            elif path != "/" and not path.startswith("/static/"):
                assert re.search(f"[$]HEDDLE{example}", page), (method, path)


def find_references(node: object) -> list[str]:
    """Every ``$ref`` of a document."""
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in find_references(value)]
    if isinstance(node, list):
        return [found for value in node for found in find_references(value)]
    return []


def resolve(document: dict[str, Any], reference: str) -> object:
    """What a local reference leads to."""
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node
