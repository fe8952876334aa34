"""One sentence for each problem, for people: the setting, its value, where it came from and what to do. No secret.

Also the keys of settings, such as `lease.expiry_s`, in the order of declaration.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tiered.settings.sections import RateSettings, UsecaseSettings
from tiered.sinks import Place
from tiered.text import quoted

PROBLEMS_MAX = 20
VALUE_SHOWN_MAX = 200
SECRET = ("feed.to.", "rows.options.", "blobs.options.", "links.keys.", "postgres.dsn.")
"""What is below these keys may be a password, or hold one."""


def sentences_of(model: type[BaseModel], error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each problem, for people, instead of pydantic's report."""
    found = error.errors(include_url=False)
    for problem in found[:PROBLEMS_MAX]:
        key = ".".join(str(part) for part in problem["loc"])
        where = f" ({origins[key]})" if key in origins else ""
        name, value = redacted(key), _shown_value(problem["input"])
        message = str(problem.get("ctx", {}).get("error", problem["msg"]))
        match problem["type"]:
            case "default_factory_not_called":
                continue  # the value it would be computed from is wrong, and another sentence says so
            case "too_short" if any(each["loc"][:-1] == problem["loc"] for each in found):
                continue  # it has items, which are wrong
            case kind if f"{key}.".startswith(SECRET):
                is_wrong = "not set" if kind == "missing" else "wrong, and not shown"
                yield f"{name}{where} is {is_wrong}: {message[0].lower()}{message[1:]}"
            case "value_error" if not key:
                yield str(problem["ctx"]["error"])
            case "value_error":
                yield f"{name}{where} is {value}: {problem['ctx']['error']}"
            case "missing":
                yield f"{name} is not set: the section {key.rpartition('.')[0]} needs it"
            case "extra_forbidden":
                yield f"{name}{where} is no setting; the nearest is {redacted(nearest(key, _known_beside(key, model)))}"
            case "model_type":
                # Somebody may have put a place there, with its password, or a key.
                shown = f"of type {type(problem['input']).__name__}" if key in ("feed", "links", "rows", "blobs", "postgres") else value
                below = next((f": set {each} below it" for each in keys_of(model) if each.startswith(f"{key}.")), "")
                yield f"{name}{where} is {shown}, not a section of settings{below}"
            case _:
                yield f"{name}{where} is {value}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    if len(found) > PROBLEMS_MAX:
        yield f"and {len(found) - PROBLEMS_MAX} problems more"


def _known_beside(key: str, model: type[BaseModel]) -> Collection[str]:
    """The settings of which one was meant by this key."""
    inside, dot, _ = key.rpartition(".")
    if not dot or not key.startswith("usecases."):
        return [*keys_of(model), *model.model_fields]
    return [f"{inside}.{name}" for name in (RateSettings if ".per_scope." in key else UsecaseSettings).model_fields]


def nearest(word: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # only needed after a mistake

    return get_close_matches(word[:VALUE_SHOWN_MAX], known, n=1, cutoff=0.0)[0]


def _shown_value(value: object) -> str:
    """A value of any type, as `redacted`. What is long is not cut before the user and the password are left out."""
    return redacted(quoted(f"…@{value.rpartition('@')[2]}" if isinstance(value, str) and "@" in value else value))


def redacted(text: str) -> str:
    """A value as a sentence holds it: in Unicode, short, without the user, the password and the options of a URL."""
    _, at, host = text.rpartition("@")
    text = re.sub(r"([@/][^?\s]*\?)[^\s'\"]*", r"\1…", f"…@{host}" if at else text)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    """The key of every setting, in the order of declaration: `directory`, …, `store.concurrency_max`, …"""
    return (key for key, _ in fields_of(model))


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its key."""
    for name, field in model.model_fields.items():
        kinds = () if get_origin(field.annotation) is Mapping else (field.annotation, *get_args(field.annotation))
        section = next((kind for kind in kinds if _is_section(kind)), None)
        if section is None:
            yield name, field
        else:
            yield from ((f"{name}.{key}", inner) for key, inner in fields_of(section))


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def keys_in(values: Mapping[str, Any]) -> Iterator[str]:
    """The key of everything that a file sets, including sections and unknown names."""
    for name, value in values.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in keys_in(value))


def value_of(values: Mapping[str, Any], key: str) -> Any:
    if key == "feed.to":
        return [Place.parse(to).shown for to in values["feed"]["to"]]
    if key in ("rows.options", "blobs.options"):
        return sorted(values[key.partition(".")[0]]["options"])
    section, dot, name = key.partition(".")
    return value_of(values[section], name) if dot else values[section]
