"""Read `cluster.yaml`; whatever is wrong with it becomes one `ConfigError` sentence."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from boards.errors import InvalidInput
from config.models import ClusterConfig, ConfigError, Name, ShardName, join_path, listed, suggest

#: Names that the file may give to its regions and shards; `boards` has its own check.
_KEYS = {"regions": Name, "shards": ShardName}


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, where plain YAML would silently keep the last."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[str, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":  # what `<<` brings in may be overridden
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problem = f"the key {_shown(key)} must be text: put it in quotes"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
        if key in seen:
            problem = f"the key `{key}` is given twice in one mapping"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return {loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value}


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_cluster(path: str | Path) -> ClusterConfig:
    """Read and check a cluster file. Raises `ConfigError`, whose text is one sentence for whoever wrote it."""
    file = str(path)
    try:
        content = yaml.load(_read(path), _StrictLoader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"is not valid YAML{place}: {error.problem or error.context}", path="the file", file=file) from error
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"is not valid YAML: {reason}", path="the file", file=file) from error
    if not isinstance(content, dict):
        required = [name for name, field in ClusterConfig.model_fields.items() if field.is_required()]
        raise ConfigError(f"must be a mapping with {listed(required, last='and')}", path="the file", file=file)
    try:
        return ClusterConfig.model_validate(content)
    except ConfigError as error:
        raise error.in_file(file) from error
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)).in_file(file) from error


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError("there is no such file; name one with `-c`", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start + 1})", path="the file", file=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", path="the file", file=str(path)) from error


def _explain(errors: list[ErrorDetails]) -> ConfigError:
    """One sentence for the first of pydantic's errors; an unknown key goes first, as the cause of a missing one."""
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind, keys = error["type"], error["loc"]
    if keys[-1] == "[key]":
        refusal = error.get("ctx", {}).get("error")
        allowed = refusal.allowed if isinstance(refusal, InvalidInput) else _description(_KEYS[str(keys[0])])
        return ConfigError(f"must be {allowed}", path=join_path(*keys[:-1]))
    path = join_path(*keys)
    if kind == "extra_forbidden":
        known = _fields_at(keys[:-1])
        return ConfigError(f"is no known key{suggest(str(keys[-1]), known)}; allowed are {listed(known, last='and')}", path=path)
    if kind in {"not_yet", "redis_url", "shards", "friends_url", "absolute_path"}:
        return ConfigError(error["msg"], path=path)
    allowed, words = _allowed(_annotation_at(keys))
    if kind == "missing":
        return ConfigError(f"is missing; it must be {allowed}", path=path)
    if keys[-1] == "url":  # may hold a password
        return ConfigError(f"must be {allowed}", path=path)
    given = error["input"]
    return ConfigError(f"must be {allowed}, not {_shown(given)}{suggest(str(given), words)}", path=path)


def _annotation_at(keys: Sequence[str | int]) -> Any:
    """Type, with its description if it has one, of the value at a path of `cluster.yaml`."""
    here: Any = ClusterConfig
    for key in keys:
        kind = _plain(here)
        if get_origin(kind) is dict:
            here = get_args(kind)[1]
        elif get_origin(kind) is tuple:
            here = get_args(kind)[0]
        else:
            field: FieldInfo = kind.model_fields[str(key)]
            here = Annotated[field.annotation, field]
    return here


def _fields_at(keys: Sequence[str | int]) -> list[str]:
    return list(_plain(_annotation_at(keys)).model_fields)


def _plain(kind: Any) -> Any:
    """The type without its annotations and without `| None`."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, UnionType}:
        return _plain(next(part for part in get_args(kind) if part is not type(None)))
    return kind


def _description(kind: Any) -> str | None:
    if get_origin(kind) is not Annotated:
        return None
    return next((extra.description for extra in get_args(kind)[1:] if isinstance(extra, FieldInfo) and extra.description), None)


def _allowed(kind: Any) -> tuple[str, list[str]]:
    """What may stand there, in words; and the words themselves where only certain ones may."""
    plain = _plain(kind)
    words = [str(word) for word in get_args(plain)] if get_origin(plain) is Literal else []
    described = _description(kind)
    if described:
        return described, words
    return (listed(words), words) if words else (f"a mapping with {listed(plain.model_fields, last='and')}", [])


def _shown(given: Any) -> str:
    """The value as the file has it, cut to one short line."""
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    text = json.dumps(given, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
