"""A whole run from one file: objects, mistakes, what it can say, and what can be asked of a run
afterwards."""

import pytest
import torch

from loopwright import Callback
from loopwright.config import ConfigError, load_config
from loopwright.interfaces.configured import Experiment

from ...loops import assert_same_model
from .experiments import experiment, train_by_hand


def test_a_run_file_trains_as_the_hand_written_loop_bit_for_bit(project):
    run = experiment()
    run.train()
    assert_same_model(run.trainer.model, train_by_hand())


def test_every_mistake_is_in_one_report_before_anything_is_built(project):
    config = load_config(
        "run.yaml", ["+model.widht=3", "trainer.max_updates=soon", "+trainer.max_epochs=1"]
    )
    with pytest.raises(ConfigError) as caught:
        Experiment.from_config(config)
    keys = {problem.key for problem in caught.value.problems}
    assert {"model.widht", "trainer.max_updates"} <= keys


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["~datasets.train"], "no data set `train`"),
        (["name=a/b"], "name of a folder"),
    ],
)
def test_mistakes_between_keys_are_reported_as_well(project, overrides, message):
    with pytest.raises(ConfigError, match=message):
        experiment(*overrides)


# Afterwards


def test_evaluation_callbacks_run_once_on_a_finished_run(project):
    run = experiment()
    run.train()
    later = Experiment.from_run(run.run, progress="silent")
    measured = later.evaluate()
    assert set(measured) == {"test_loss", "test_mse", "test_mae"}
    assert measured == run.evaluate()
    assert measured["test_loss"] == later.evaluate("test")["loss"]
    assert later.ready("newest") is later.ready("newest")  # read once, however often it is asked


# What a run file can say


def test_an_optimizer_has_options_for_parts_of_the_model(project):
    run = experiment(
        "++model.optimizer.modifiers={layers.0: {lr_scale: 0.5}}", "++model.optimizer.no_decay=true",
        "++model.optimizer.weight_decay=0.1",
    )  # fmt: skip
    run.build()
    found = {(group["lr"], group["weight_decay"]) for group in run.trainer.optimizer.param_groups}
    assert found == {(0.005, 0.1), (0.005, 0.0), (0.01, 0.1), (0.01, 0.0)}


@pytest.mark.parametrize("where", ["model.scheduler", "scheduler"])
def test_a_curve_sets_the_learning_rate(project, where):
    run = experiment(f"++{where}={{kind: Linear, start: 1.0, end: 0.0}}", "trainer.max_updates=10")
    run.build()
    seen = []

    class Rates(Callback):
        def on_train_step_start(self, trainer, batch):
            seen.append(trainer.optimizers["optimizer"].param_groups[0]["lr"])

    run.trainer.engine.add_callback(Rates())
    run.train()
    assert seen == pytest.approx([0.01 * (1 - n / 10) for n in range(10)])


def test_a_scheduler_of_torch_is_stepped_as_often_as_is_said(project):
    run = experiment(
        "++scheduler={kind: ExponentialLR, gamma: 0.5, every: update}", "trainer.max_updates=4"
    )
    run.train()
    assert run.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.5**4)


@pytest.mark.parametrize("where", ["initializer", "trainer.initializer"])
def test_a_run_begins_with_the_weights_of_an_earlier_one(project, where):
    first = experiment("trainer.max_updates=5")
    first.train()
    second = experiment(
        f"++{where}={{kind: FromCheckpoint, path: {first.run}}}",
        "trainer.max_updates=0",
        "output_path=second",
    )
    second.train()
    assert_same_model(second.trainer.model, first.trainer.model)


def test_data_sets_that_draw_random_numbers_differ_from_each_other_and_not_from_run_to_run(project):
    with open("mine.py", "a") as file:
        file.write(
            "\n\nclass Drawn(Points):\n    def __init__(self):\n        super().__init__(4)\n"
        )
        file.write("        self.labels = torch.rand(4)\n")
    overrides = ["datasets={train: {kind: mine.Drawn}, test: {kind: mine.Drawn}}"]
    runs = [experiment(*overrides) for _ in range(2)]
    for run in runs:
        run.build()
    first, second = (run.trainer.datasets for run in runs)
    assert not torch.equal(first["train"].labels, first["test"].labels)
    assert torch.equal(first["train"].labels, second["train"].labels)
