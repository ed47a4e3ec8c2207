"""Type hints: values of YAML become what a hint asks for, and mistakes say what that is."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from loopwright.config import Config, ConfigError, Entry, Place, Schema, build, check
from loopwright.config.tree import to_node

Bound = TypeVar("Bound", bound=int)
LAYER = Place("layer", nn.Module)


class Shape(enum.Enum):
    ROUND = "o"
    SQUARE = 2


@dataclass
class Options:
    rate: float
    layer: nn.Module | None = None


class Settings(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    pause: timedelta | None = Field(None, alias="wait")
    options: Options | None = None
    dtype: torch.dtype | None = None


class Net(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings


class Renamed(Net):
    def __init__(self, settings, width):
        super().__init__(settings)


class Typed(nn.Module):
    """A module whose argument has the hint that a test gives it."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def read(hint: Any, value: Any) -> Any:
    Typed.__init__.__annotations__["value"] = hint
    return build({"kind": f"{__name__}.Typed", "value": value}, LAYER).value


def message(hint: Any, value: Any) -> str:
    config = Config(to_node({"value": value}, "run.yaml", 1), ".")
    (problem,) = check(config, Schema({"value": Entry(hint)}))
    return f"{problem.key} {problem.message}"


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int | float, 1, 1),
        (bool | int, 1, 1),
        (int | bool, True, True),
        (int | str, "1", "1"),
        (tuple[int, int] | list[int], [1, 2], [1, 2]),
        (tuple[int, int] | int, [1, 2], (1, 2)),
        (nn.Module | str, "Tanh", "Tanh"),
        (dict[str, Any] | nn.Module, {"kind": "Tanh"}, {"kind": "Tanh"}),
        (float | torch.Tensor, 3, 3.0),
        (int | torch.Tensor, 1e3, 1000),
        (dict[str, Any], {1: {"kind": 2}}, {1: {"kind": 2}}),
        (dict[int, float], {1: 2}, {1: 2.0}),
        (Mapping[str, Sequence[int]], {"a": [1]}, {"a": [1]}),
        (Iterable[float], [1, 2], [1.0, 2.0]),
        (frozenset[str], ["a", "a"], frozenset({"a"})),
        (Shape, 2, Shape.SQUARE),
        (Literal[1, True], 1, 1),
        (Literal[Shape.ROUND], "ROUND", Shape.ROUND),
        (NewType("Width", int), 3, 3),
        (Bound, 3, 3),
        (torch.device, "cuda:1", torch.device("cuda", 1)),
        (Hashable, "a", "a"),
    ],
    ids=str,
)
def test_a_value_stays_what_it_is_where_the_hint_allows_and_is_converted_otherwise(
    hint, value, expected
):
    found = read(hint, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int | float, "x", "value is the text 'x'; expected a whole number or a number."),
        (list[int | str], None, "value is null; expected a list of a whole number or text."),
        (Literal[1], True, "value is true; expected 1."),
        (dict[int, float], {"a": 1}, "value.a is the text 'a'; expected a whole number."),
        (int, 1e300, "value is 1e+300; expected a whole number."),
        (float, 10**400, "value is a very long whole number; expected a number."),
        (
            torch.dtype,
            {"a": 1},
            "value is a mapping with the keys a; expected a dtype such as float32.",
        ),
        (set[Any], [[1]], "value is a list of 1; expected a list."),
        (torch.device, "gpu", "value is the text 'gpu'; expected a device such as cpu or cuda:0."),
        (Path | None, {}, "value is an empty mapping; expected a path or null."),
        (
            type[nn.Module] | None,
            3,
            "value is 3 (a whole number); expected the import path of a class or null.",
        ),
        (
            list[nn.Module] | None,
            ["Tnah"],
            "value.0.kind there is no kind Tnah for Module; did you mean Tanh?",
        ),
    ],
    ids=str,
)
def test_a_mistake_says_what_the_hint_asks_for(hint, value, words):
    assert message(hint, value) == words


def build_net(**settings: Any) -> Settings:
    return build({"kind": f"{__name__}.Net", **settings}, LAYER).settings


def test_fields_that_pydantic_can_read_are_left_to_it_under_their_aliases():
    assert build_net(wait="PT1M").pause == timedelta(minutes=1)
    with pytest.raises(
        ConfigError, match="wait\n    is the text 'soon'; input should be a valid timedelta"
    ):
        build_net(wait="soon")


def test_objects_inside_the_fields_of_a_model_are_built():
    assert isinstance(build_net(options={"rate": 1, "layer": "Tanh"}).options.layer, nn.Tanh)
    assert build_net(dtype="bfloat16").dtype is torch.bfloat16
    with pytest.raises(ConfigError, match=r"options\.layer\.kind\n    there is no kind Tnah"):
        build_net(options={"rate": 1, "layer": {"kind": "Tnah"}})


def test_an_argument_without_a_hint_has_that_of_the_base():
    net = build({"kind": f"{__name__}.Renamed", "dtype": "float16", "width": 3}, LAYER)
    assert net.settings.dtype is torch.float16
    with pytest.raises(ConfigError, match=r"width\n    is missing: .* takes it, a value, and"):
        build({"kind": f"{__name__}.Renamed", "dtype": "float16"}, LAYER)
