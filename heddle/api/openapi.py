"""``/openapi.json``, made from the table of routes and the types that the handlers use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from heddle import __version__
from heddle.api.problems import ErrorBody
from heddle.api.routing import ERROR_TEXTS, Answer, Route
from heddle.api.schemas import ID_PATTERN

_REF = "#/components/schemas/{model}"

Schema = dict[str, Any]


def describe(routes: Sequence[Route]) -> bytes:
    """The OpenAPI 3.1 document, encoded."""
    schemas, components = _schemas(routes)
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Heddle",
            "version": __version__,
            "description": "Batches of prompts in, finished trajectories out.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return orjson.dumps(document)


def _schemas(routes: Iterable[Route]) -> tuple[dict[Any, Schema], Schema]:
    """The schema of each type that the routes name, and what they refer to."""
    wanted: dict[Any, JsonSchemaMode] = {ErrorBody: "serialization"}
    for route in routes:
        if route.body is not None:
            wanted[route.body] = "validation"
        for answer in route.answers.values():
            if answer.schema is not None:
                wanted[answer.schema] = "serialization"
    inputs = [(kind, mode, TypeAdapter(kind)) for kind, mode in wanted.items()]
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    by_type = {kind: schema for (kind, _mode), schema in found.items()}
    components = dict(definitions.get("$defs", {}))
    return by_type, components


def _operation(route: Route, schemas: dict[Any, Schema]) -> Schema:
    operation: Schema = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "security": [] if route.public else [{"bearer": []}],
        "parameters": [*map(_id_parameter, route.id_parameters), *_query_parameters(route.query)],
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        operation["requestBody"] = _json_body(schemas[route.body])
    return operation


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z]+", route.path.removeprefix("/v1")) or ["dashboard"]
    return "_".join([route.method.lower(), *words])


def _json_body(schema: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _id_parameter(name: str) -> Schema:
    schema = {"type": "string", "pattern": ID_PATTERN.replace("127", "191")}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(query: type[BaseModel] | None) -> list[Schema]:
    if query is None:
        return []
    parameters = []
    for name, schema in query.model_json_schema(ref_template=_REF)["properties"].items():
        description = schema.pop("description", "")
        parameters.append({"name": name, "in": "query", "description": description, "schema": schema})
    return parameters


def _responses(route: Route, schemas: dict[Any, Schema]) -> Schema:
    responses = {str(status): _success(answer, schemas) for status, answer in route.answers.items()}
    for status in route.all_errors:
        content = {"application/json": {"schema": schemas[ErrorBody]}}
        responses[str(status)] = {"description": ERROR_TEXTS[status], "content": content}
    return responses


def _success(answer: Answer, schemas: dict[Any, Schema]) -> Schema:
    schema: Schema = {"type": "string"}
    if answer.schema is not None:
        schema = schemas[answer.schema]
    elif answer.content_types == ("application/json",):
        schema = {"type": "object"}
    if answer.wrapped is not None:
        listed = {"type": "array", "items": schema}
        schema = {"type": "object", "properties": {answer.wrapped: listed}, "required": [answer.wrapped]}
    content = {content_type: {"schema": schema} for content_type in answer.content_types}
    return {"description": answer.text, "content": content}
