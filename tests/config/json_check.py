"""As much of a JSON schema validator as the schemas written here use; an unknown keyword is an
error."""

from __future__ import annotations

import re
from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
WORDS = {"$schema", "$defs", "title", "description", "default"}


def is_valid(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    if isinstance(schema, bool):
        return schema
    return all(
        check(value, word, given, schema, root)
        for word, given in schema.items()
        if word not in WORDS
    )


def check(value: Any, word: str, given: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if word == "$ref":
        found = root
        for part in given.removeprefix("#/").split("/"):
            found = found[part]
        return is_valid(value, found, root)
    if word == "type":
        return any(is_type(value, name) for name in ([given] if isinstance(given, str) else given))
    if word == "enum":
        return any(type(option) is type(value) and option == value for option in given)
    if word == "anyOf":
        return any(is_valid(value, option, root) for option in given)
    if word == "allOf":
        return all(is_valid(value, option, root) for option in given)
    if word == "not":
        return not is_valid(value, given, root)
    if word == "minProperties":
        return not isinstance(value, dict) or len(value) >= given
    if word == "if":
        return is_valid(
            value, schema.get("then" if is_valid(value, given, root) else "else", True), root
        )
    if word == "pattern":
        return not isinstance(value, str) or re.search(given, value) is not None
    if word == "required":
        return not isinstance(value, dict) or all(name in value for name in given)
    if word == "properties":
        return not isinstance(value, dict) or all(
            is_valid(value[k], s, root) for k, s in given.items() if k in value
        )
    if word == "additionalProperties":
        more = (
            [v for k, v in value.items() if k not in schema.get("properties", {})]
            if isinstance(value, dict)
            else []
        )
        return all(is_valid(item, given, root) for item in more)
    if word in ("minItems", "maxItems", "uniqueItems"):
        wrong = (
            {"minItems": len(value) < given, "maxItems": len(value) > given}
            if isinstance(value, list)
            else {}
        )
        return not wrong.get(word, False)
    if word == "prefixItems":
        return not isinstance(value, list) or all(
            map(lambda item, part: is_valid(item, part, root), value, given)
        )
    if word == "items":
        start = len(schema.get("prefixItems", []))
        return not isinstance(value, list) or all(
            is_valid(item, given, root) for item in value[start:]
        )
    assert word in ("then", "else"), word
    return True


def is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])
