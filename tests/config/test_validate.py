"""Objects from nodes: arguments against the class's own signature, nested, before anything is
built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from loopwright.callbacks import EMA, EarlyStopping
from loopwright.config import ConfigError, Entry, Place, Schema, build, check, list_of, load_config
from tests.config.projects import DATASET, MODEL, OPTIMIZER, SCHEDULER, SCHEMA, TRAINER


def model(project, *overrides):
    return build(load_config(project.file, overrides).at("model"), MODEL)


def calls():
    """The classes of the project that were called."""
    return sys.modules["mine"].CALLS


def mistakes(project, *overrides):
    config = load_config(project.file, overrides)
    found = check(config, SCHEMA)
    assert calls() == []
    return {problem.key: problem.message for problem in found}


def test_a_good_file_has_no_mistakes_and_builds_what_it_says(project):
    config = load_config(project.file)
    assert check(config, SCHEMA) == []
    net = build(config.at("model"), MODEL)
    assert (type(net).__name__, net.given["width"], net.given["dropout"]) == ("Net", 16, 0.1)
    assert isinstance(net.given["inner"], nn.Linear)
    optimizer = build(config.at("model.optimizer"), OPTIMIZER, params=net.parameters())
    assert optimizer.defaults["betas"] == (0.9, 0.95)
    assert build(config.at("datasets.test"), DATASET).n == 32


def test_a_trainer_gets_the_pydantic_model_that_its_annotation_names(project):
    trainer = build(
        load_config(project.file).at("trainer"), TRAINER, model="the model", optimizer=None
    )
    assert type(trainer.config).__name__ == "CustomConfig"
    assert (trainer.config.kind, trainer.config.max_updates, trainer.config.alpha) == (
        "mine.Custom",
        37,
        2.0,
    )
    assert [type(callback) for callback in trainer.config.callbacks] == [EarlyStopping, EMA]
    assert trainer.deps == {"model": "the model", "optimizer": None}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("depth", "1e1", 10),
        ("dropout", "0", 0.0),
        ("activation", "gelu", "gelu"),
        ("dtype", "bfloat16", torch.bfloat16),
        ("device", "meta", "meta"),
        ("sizes", "[1, 2, 3]", (1, 2, 3)),
        ("pair", "[1, x]", (1, "x")),
        ("weights", "a/b.pt", Path("a/b.pt")),
        ("layer", "torch.nn.Identity", nn.Identity),
        ("layer", "Conv2d", nn.Conv2d),
        ("names", "{a: 1, b: 2}", {"a": 1, "b": 2}),
        ("ghost", "[1, {a: 2}]", [1, {"a": 2}]),
    ],
)
def test_a_value_becomes_what_its_annotation_asks_for(project, name, text, value):
    found = model(project, f"++model.{name}={text}").given[name]
    assert found == value
    assert type(found) is type(value)


def test_an_argument_without_annotation_takes_data_and_objects_of_known_kinds(project):
    net = model(
        project,
        "model={kind: mine.Loose, width: [1, {a: 2}], encoder: {kind: Linear, in_features: 1, "
        "out_features: 1}}",
    )
    assert net.width == [1, {"a": 2}]
    assert isinstance(net.encoder, nn.Linear)


def test_arguments_pass_through_kwargs_to_the_base(project):
    net = model(project, "model={kind: mine.Wide, width: 4, extra: 2}")
    assert (net.extra, net.given["width"]) == (2, 4)


def test_a_scheduler_inside_a_scheduler_is_given_the_same_optimizer():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    inner = [{"kind": "ConstantLR", "factor": 0.5}, {"kind": "ExponentialLR", "gamma": 0.9}]
    node = {"kind": "SequentialLR", "schedulers": inner, "milestones": [2]}
    scheduler = build(node, SCHEDULER, optimizer=optimizer)
    assert [type(item).__name__ for item in scheduler._schedulers] == [
        "ConstantLR",
        "ExponentialLR",
    ]


def test_a_dict_of_anything_is_left_as_it_is_kind_and_all(project):
    config = load_config(project.file, ["+trainer.raw=[{kind: os.system, x: {kind: nothing}}]"])
    assert check(config, SCHEMA) == []
    trainer = build(config.at("trainer"), TRAINER)
    assert trainer.config.raw == [{"kind": "os.system", "x": {"kind": "nothing"}}]


def test_a_place_may_have_a_default_kind():
    place = Place("optimizer", torch.optim.Optimizer, given=("params",), default="SGD")
    assert type(build({"lr": 0.5}, place, params=[torch.zeros(1)])) is torch.optim.SGD


def test_a_function_is_called_only_if_the_place_registered_it(project):
    place = Place("model", nn.Module, short={"net": "mine.make_net"})
    config = load_config(project.file, ["model={kind: net, width: 3}"])
    assert build(config.at("model"), place).given["width"] == 3
    with pytest.raises(ConfigError, match=r"mine\.make_net is a function"):
        model(project, "model={kind: mine.make_net, width: 3}")


class Ruler(Protocol):
    def measure(self) -> float: ...


class Tape:
    def __init__(self, length: float) -> None:
        self.length = length

    def measure(self) -> float:
        return self.length


def test_a_protocol_is_fitted_by_a_class_with_its_methods():
    place = Place("ruler", Ruler)
    assert build({"kind": f"{__name__}.Tape", "length": 2}, place).measure() == 2.0
    with pytest.raises(ConfigError, match=r"is not a .*Ruler"):
        build({"kind": "torch.nn.Identity"}, place)
    with pytest.raises(ConfigError, match="is a protocol"):
        build({"kind": f"{__name__}.Ruler"}, place)


def test_what_the_program_supplies_is_passed_only_to_those_who_take_it(project):
    place = Place("dataset", Dataset, given=("n", "unheard_of"))
    config = load_config(project.file, ["datasets.train={kind: mine.Points}"])
    assert build(config.at("datasets.train"), place, n=5, unheard_of=1).n == 5


def test_what_the_program_supplies_must_be_supplied(project):
    with pytest.raises(TypeError, match="the program must supply params, but did not"):
        build(load_config(project.file).at("model.optimizer"), OPTIMIZER)
    with pytest.raises(TypeError, match="other: name what is given"):
        build(load_config(project.file).at("model.optimizer"), OPTIMIZER, other=1)


def test_an_exception_in_a_constructor_says_what_was_being_built(project):
    with pytest.raises(RuntimeError, match="not today") as caught:
        model(project, "model={kind: mine.Grumpy, width: 1}")
    assert caught.value.__notes__ == ["raised while model (kind: mine.Grumpy) was built"]


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("model.width=x", "model.width", "is the text 'x'; expected a whole number."),
        ("model.dropout=high", "model.dropout", "expected a number."),
        (
            "+model.activation=gleu",
            "model.activation",
            "is the text 'gleu'; expected relu or gelu.",
        ),
        ("+model.sizes=[1, x]", "model.sizes.1", "expected a whole number"),
        ("+model.options={rate: 1, nam: x}", "model.options.nam", "did you mean name?"),
        ("+model.options={rate: 1, kind: mine.Net}", "model.options.kind", "is not a mine.Options"),
        ("+model.layer=mine.Points", "model.layer", "is not a torch.nn.Module"),
        ("+model.shape=RUOND", "model.shape", "expected ROUND or SQUARE."),
        ("+model.scale=[a]", "model.scale", "expected a list of numbers"),
        ("+model.widht=3", "model.widht", "mine.Net takes no such argument"),
        ("~model.width", "model.width", "is missing: mine.Net takes it, a whole number"),
        ("model.inner={in_features: 1}", "model.inner.kind", "name the class"),
        ("+model.optimizer.params=[1]", "model.optimizer.params", "supplied by the program"),
        ("model.optimizer.kind=AdamX", "model.optimizer.kind", "no kind AdamX for optimizer"),
        ("model.kind=mine.Nett", "model.kind", "the module mine has no Nett; did you mean Net?"),
        (
            "model.kind=mien.Net",
            "model.kind",
            "there is no module mien, neither next to the file nor installed",
        ),
        ("model.kind=mine.Points", "model.kind", "mine.Points is not a torch.nn.Module"),
        ("model.kind=3", "model.kind", "import path of a class"),
        ("model=3", "model", "expected a mapping with `kind:`"),
        ("~model", "model", "is missing"),
        (
            "trainer.max_updates=many",
            "trainer.max_updates",
            "is the text 'many'; input should be a valid integer",
        ),
        ("+trainer.batch_size=0", "trainer.batch_size", "greater than or equal to 1"),
        ("~trainer.max_updates", "trainer", "exactly one of max_updates and max_epochs"),
        (
            "trainer.callbacks.0.kind=EarlyStoping",
            "trainer.callbacks.0.kind",
            "did you mean EarlyStopping?",
        ),
        ("+seeed=1", "seeed", "did you mean seed?"),
        ("seed=x", "seed", "expected a whole number or null"),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_what_was_expected(project, override, key, words):
    found = mistakes(project, override)
    assert list(found) == [key], found
    assert words in found[key]


def test_open_keyword_arguments_are_accepted_but_not_misspelt_ones():
    class Open(Dataset):
        def __init__(self, width: int, **kwargs: object) -> None:
            self.kwargs = kwargs

    globals()["Open"], Open.__qualname__ = Open, "Open"
    place = Place("data", Dataset)
    assert build({"kind": f"{__name__}.Open", "width": 1, "colour": "red"}, place).kwargs == {
        "colour": "red"
    }
    with pytest.raises(ConfigError, match="did you mean width"):
        build({"kind": f"{__name__}.Open", "widht": 1}, place)


def test_a_schema_of_ones_own(project):
    layers = Place("layer", nn.Module)
    schema = Schema(
        {"layers": Entry(list_of(layers), True), "deep": Entry(Schema({"n": Entry(int, True)}))}
    )
    path = project.write("own.yaml", "layers: [ReLU, {kind: Linaer}]\ndeep: {m: 1}\n")
    found = {problem.key: problem.message for problem in check(load_config(path), schema)}
    assert set(found) == {"layers.1.kind", "deep.m", "deep.n"}
    assert "did you mean Linear?" in found["layers.1.kind"]


def test_two_projects_with_modules_of_the_same_name_do_not_mix(project):
    other = project.folder / "other"
    other.mkdir()
    (other / "mine.py").write_text(
        "from torch.utils.data import Dataset\nclass Points(Dataset):\n    size = 7\n"
    )
    path = project.write("other/run.yaml", "data: {kind: mine.Points}\n")
    first = build(load_config(project.file).at("datasets.test"), DATASET)
    second = build(load_config(path).at("data"), DATASET)
    third = build(load_config(project.file).at("datasets.test"), DATASET)
    assert (first.n, second.size, third.n) == (32, 7, 32)


def test_an_unknown_key_inside_a_pydantic_field_is_reported_too(project):
    found = mistakes(project, "+trainer.warmup={steps: 3, lenght: 2}", "+trainer.choice={rate: x}")
    assert set(found) == {"trainer.warmup.lenght", "trainer.choice.rate"}
    assert "did you mean length?" in found["trainer.warmup.lenght"]


def test_pydantic_reads_its_own_fields(project):
    config = load_config(project.file, ["+trainer.warmup={steps: 3}", "+trainer.choice={rate: 1}"])
    trainer = build(config.at("trainer"), TRAINER)
    assert (trainer.config.warmup.steps, trainer.config.choice.rate) == (3, 1.0)


def test_a_function_cannot_be_an_argument_but_a_module_that_is_called_can():
    node = {"kind": "TransformerEncoderLayer", "d_model": 4, "nhead": 1, "dim_feedforward": 4}
    place = Place("layer", nn.Module)
    assert isinstance(build({**node, "activation": {"kind": "Tanh"}}, place).activation, nn.Tanh)
    loss = {"kind": "torch.nn.TripletMarginWithDistanceLoss", "distance_function": "os.system"}
    with pytest.raises(ConfigError, match="a function cannot be named"):
        build(loss, place)


def test_an_argument_whose_default_is_a_layer_takes_layers(project):
    assert isinstance(model(project, "model={kind: mine.Loose, width: 1, act: Tanh}").act, nn.Tanh)
    found = mistakes(project, "model={kind: mine.Loose, width: 1, act: 3}")
    assert "expected a mapping that describes a torch.nn.Module" in found["model.act"]


@pytest.mark.parametrize(
    ("text", "kind"), [("null", type(None)), ("Tanh", nn.Tanh), ("{kind: Tanh}", nn.Tanh)]
)
def test_a_place_in_a_pydantic_field_takes_its_kind_or_its_default(project, text, kind):
    found = mistakes(project, "+trainer.helper=mine.Points")
    assert "is not a torch.nn.Module" in found["trainer.helper.kind"]
    config = load_config(project.file, [f"+trainer.helper={text}"])
    assert type(build(config.at("trainer"), TRAINER).config.helper) is kind
