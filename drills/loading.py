"""Find a plan by its shipped name or its file, and check it; whatever is wrong with it becomes one `ConfigError` sentence."""

import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from config.models import ConfigError, join_path, listed, suggest
from drills.plan import STEPS, Objectives, Plan, Traffic, Unavailable

_SUFFIXES = (".yaml", ".yml")
_SECTIONS: dict[str, type[BaseModel]] = {"traffic": Traffic, "objectives": Objectives, "unavailable": Unavailable}


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in made:
            problem = f"the key `{key}` is given twice in one mapping" if isinstance(key, str) else f"the key {key!r} must be text"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
        made[key] = loader.construct_object(value_node, deep=True)
    return made


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@functools.cache
def shipped() -> dict[str, Plan]:
    """The plans that come with the package, by name."""
    folder = resources.files("drills") / "plans"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(_SUFFIXES)), key=lambda file: file.name)
    plans = [parse_plan(file.read_text("utf-8"), file.name) for file in files]
    return {plan.name: plan for plan in plans}


def find_plan(name: str) -> Plan:
    """The shipped plan of that name, or the plan in the file of that name. Raises `ConfigError`."""
    if "/" in name or name.endswith(_SUFFIXES):
        try:
            text = Path(name).read_text("utf-8")
        except FileNotFoundError as error:
            raise ConfigError("there is no such file", file=name) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"is not UTF-8 text (byte {error.start + 1})", path="the file", file=name) from error
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror or error}", path="the file", file=name) from error
        return parse_plan(text, name)
    return shipped_plan(name)


def shipped_plan(name: str) -> Plan:
    """The shipped plan of that name. Raises `ConfigError`."""
    plans = shipped()
    if name not in plans:
        raise ConfigError(f"there is no plan `{name}`{suggest(name, plans)}; shipped are {listed(plans, last='and')}, or give a .yaml file")
    return plans[name]


def parse_plan(text: str, file: str) -> Plan:
    """Check the text of a plan. Raises `ConfigError` that names `file`, the key at fault and what is allowed."""
    try:
        content = yaml.load(text, _Loader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"is not valid YAML{place}: {error.problem or error.context}", path="the file", file=file) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())}", path="the file", file=file) from error
    if not isinstance(content, dict):
        required = [name for name, field in Plan.model_fields.items() if field.is_required()]
        raise ConfigError(f"must be a mapping with {listed(required, last='and')}", path="the file", file=file)
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)).in_file(file) from error


def _explain(errors: list[ErrorDetails]) -> ConfigError:
    """One sentence for the first error; an unknown key goes first, as the cause of a missing one."""
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind, keys, given = error["type"], error["loc"], error["input"]
    # The word of a step stands in the place of its error, though not in the file.
    path = join_path(*(key for at, key in enumerate(keys) if not (at == 2 and keys[0] == "steps")))
    if kind == "union_tag_not_found":
        return ConfigError(f"is missing; it must be {listed(STEPS)}", path=join_path(*keys, "do"))
    if kind == "union_tag_invalid":
        word = str(given.get("do")) if isinstance(given, dict) else ""
        return ConfigError(f"must be {listed(STEPS)}, not `{word}`{suggest(word, STEPS)}", path=join_path(*keys, "do"))
    model = _model_at(keys[:-1])
    if kind == "extra_forbidden":
        known = [field.alias or name for name, field in model.model_fields.items()]
        return ConfigError(f"is no known key{suggest(str(keys[-1]), known)}; allowed are {listed(known, last='and')}", path=path)
    allowed = _allowed(keys)
    if kind == "missing":
        return ConfigError(f"is missing; it must be {allowed}", path=path)
    words = allowed.split("`")[1::2]
    return ConfigError(f"must be {allowed}, not {_shown(given)}{suggest(str(given), words)}", path=path)


def _model_at(keys: Sequence[str | int]) -> type[BaseModel]:
    """Which section the path leads into."""
    if not keys:
        return Plan
    if keys[0] == "steps":
        return STEPS[str(keys[2])] if len(keys) > 2 else Plan
    return _SECTIONS.get(str(keys[0]), Plan)


def _allowed(keys: Sequence[str | int]) -> str:
    """What may stand there, in words."""
    if isinstance(keys[-1], int):
        return "a mapping"
    for name, field in _model_at(keys[:-1]).model_fields.items():
        if keys[-1] in (name, field.alias):
            return field.description or "text"
    return "something else"


def _shown(given: Any) -> str:
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    text = json.dumps(given, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
