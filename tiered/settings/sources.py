"""Reads the settings from a YAML file and from the environment.

A file holds mappings, lists, numbers and text. YAML's other kinds of values, such as dates, stay text. Aliases and tags
that are not YAML's own are refused. So a small file cannot expand into a large one, and no value becomes something
unexpected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from changelog.base.errors import ConfigurationError
from tiered.settings.root import Settings
from tiered.settings.sentences import PROBLEMS_MAX, keys_in, keys_of, nearest, redacted
from tiered.text import quoted

if TYPE_CHECKING:
    from yaml import Node


ENV_PREFIX = "TIERED_"
ENV_CONFIG = "TIERED_CONFIG"
ENV_OTHERS = ("TIERED_SIM_",)
"""Variables that are no settings begin so: the path of the settings file, and what `make sim` passes to the tests."""

FILE_BYTES_MAX = 256 * 1024


def load_settings(path: str | Path | None, *, below: Mapping[str, Any] = MappingProxyType({}), below_from: str = "default") -> Settings:
    """Reads the settings file, if a path is given. The environment's variables take precedence over it.

    `below`: values to use where neither the file nor the environment sets one. `below_from`: where those values come
    from, as `Settings.shown` tells it. A relative path is relative to the directory that is the current one now. Raises
    `ConfigurationError`.
    """
    if not isinstance(path, str | Path | None):
        raise ConfigurationError(f"pass Settings(…), or the path of a settings file as str or pathlib.Path, not {redacted(quoted(path))}")
    file = {} if path is None else _read(Path(path))
    variables = _variables()
    origins = dict.fromkeys(keys_in(below), below_from) | dict.fromkeys(keys_in(file), str(path)) | variables
    return Settings(_origins=origins, **_merged(_merged(below, file), _of_environment(variables)))


def _read(path: Path) -> dict[str, Any]:
    import yaml  # imported here, because many stores have no settings file

    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"the settings file {path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        instead = f"; for a store in this directory pass Settings(directory={str(path)!r})" if path.is_dir() else ""
        raise ConfigurationError(f"the settings file {path} cannot be read: {reason}{instead}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {FILE_BYTES_MAX // 1024} KiB, so it is no settings file")
    try:
        node = yaml.compose(text.decode("utf-8"), Loader=yaml.SafeLoader)
        values = None if node is None else _plain(node, set())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {path} is not YAML: {_wrong_yaml(error)}") from None
    except RecursionError:
        raise ConfigurationError(f"the settings file {path} is nested too deeply to hold settings") from None
    except _NoSettingError as error:
        raise ConfigurationError(f"the settings file {path}, line {error.line}: {error}") from None
    if not isinstance(values or {}, dict):
        raise ConfigurationError(f"the settings file {path} holds {redacted(quoted(values))}, not a mapping such as 'directory: data'")
    # A key without a value sets nothing. A section whose lines are all commented out looks like this.
    return {key: value for key, value in (values or {}).items() if value is not None}


def _wrong_yaml(error: Exception) -> str:
    """What is wrong with the YAML, and in which line. PyYAML's own message would also quote the line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return " ".join(str(error).split()) if mark is None else f"line {mark.line + 1}: {problem}"


class _NoSettingError(Exception):
    """YAML that a settings file does not need, with its line. It never leaves this module."""

    def __init__(self, node: Node, sentence: str) -> None:
        super().__init__(sentence)
        self.line = node.start_mark.line + 1


def _plain(node: Node, seen: set[Node]) -> Any:
    """Mappings, lists, numbers and text.

    Each node is read once only, so aliases cannot expand a small file into a large one.
    """
    import yaml

    if node in seen:
        raise _NoSettingError(node, "write the value out a second time: aliases (*name) are not read")
    seen.add(node)
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise _NoSettingError(node, f"leave out the tag {redacted(node.tag)}")
    match node:
        case yaml.MappingNode():
            return _mapping(node, seen)
        case yaml.SequenceNode():
            return [_plain(each, seen) for each in node.value]
        case _:
            return _scalar(node.tag.rpartition(":")[2], node.value)


def _mapping(node: Node, seen: set[Node]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for named, value in node.value:
        if not isinstance(named.value, str):
            raise _NoSettingError(named, "the name of a setting is text")
        if named.value in values:
            raise _NoSettingError(named, f"{redacted(named.value)} is said twice: remove one")
        values[named.value] = _plain(value, seen)
    return values


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except ValueError:  # YAML takes 1:30 for the number 90; here it stays text
        return text


def _variables() -> dict[str, str]:
    """The environment variable of each setting that is set there, by the setting's key."""
    known = {ENV_PREFIX + key.replace(".", "__").upper(): key for key in keys_of(Settings)}
    # pydantic accepts variable names in any case. Here only upper case is known, so that other spellings are refused.
    said = [
        name for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX) and name.upper() != ENV_CONFIG and not name.upper().startswith(ENV_OTHERS)
    ]  # fmt: skip
    if unknown := [name for name in said if name not in known]:
        raise ConfigurationError("\n".join(
            f"{redacted(name)} is set in the environment but is no setting; the nearest is {nearest(name.upper(), known)}"
            for name in unknown[:PROBLEMS_MAX]
        ))
    return {known[name]: name for name in said if os.environ[name]}


def _of_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The values of these variables, section by section."""
    values: dict[str, Any] = {}
    for key, name in variables.items():
        section, dot, last = key.rpartition(".")
        (values.setdefault(section, {}) if dot else values)[last] = os.environ[name]
    return values


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings, merged section by section. `above` wins."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            merged[name] = _merged(below[name], above[name])
    return merged
