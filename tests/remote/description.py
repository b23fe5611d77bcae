"""Check requests and answers against the OpenAPI description, so that each test of the interface tests it too."""

import json
from pathlib import Path
from typing import Any

import django_pgqueue.contrib.remote

DESCRIPTION: dict[str, Any] = json.loads(
    (Path(django_pgqueue.contrib.remote.__file__).parent / "openapi.json").read_text()
)
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference."""
    while "$ref" in schema:
        found: Any = DESCRIPTION
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def problems(schema: dict[str, Any], value: Any, place: str = "value") -> list[str]:
    """Return how a value differs from a schema. It knows the keywords that the description uses."""
    schema = resolved(schema)
    known = {"type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"}
    known |= {"minLength", "maxLength", "minimum", "maximum", "default", "description", "format"}
    assert set(schema) <= known, f"unknown keywords {set(schema) - known}"
    if not has_type(schema, value):
        return [f"{place} is of type {type(value).__name__}, not {schema['type']}"]
    found = [f"{place} is not one of {schema['enum']}"] if value not in schema.get("enum", [value]) else []
    size = len(value) if isinstance(value, str | list) else 0
    found += [f"{place} is too short"] * (size < schema.get("minLength" if isinstance(value, str) else "minItems", 0))
    found += [f"{place} is too long"] * (size > schema.get("maxLength" if isinstance(value, str) else "maxItems", size))
    if isinstance(value, int | float):
        found += [f"{place} is too small"] * (value < schema.get("minimum", value))
        found += [f"{place} is too large"] * (value > schema.get("maximum", value))
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += problems(schema.get("items", {}), item, f"{place}[{index}]")
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{place} lacks {name}" for name in schema.get("required", []) if name not in value]
        found += [f"{place} has {name}" for name in value if name not in schema["properties"]]
        for name in value.keys() & schema["properties"].keys():
            if value[name] is not None or "null" in resolved(schema["properties"][name]).get("type", []):
                found += problems(schema["properties"][name], value[name], f"{place}.{name}")
    return found


def has_type(schema: dict[str, Any], value: Any) -> bool:
    wanted = schema.get("type", list(TYPES))
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)  # type: ignore[arg-type]  # a tuple of types, too


def check(path: str, body: Any, status: int, answer: Any) -> None:
    """Raise `AssertionError` if a request and its answer are not as described."""
    operation = DESCRIPTION["paths"][f"/v1/{path}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    if status < 300:
        assert problems(schema, body, "body") == []
    response = resolved(operation["responses"][str(status)])
    kinds = response["content"].values()
    assert any(problems(kind["schema"], answer, "answer") == [] for kind in kinds), (status, answer)
