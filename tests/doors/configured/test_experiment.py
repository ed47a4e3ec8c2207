"""A whole run from one file: objects, run directories, continuing, and what can be asked of a run afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from loopwright import Callback
from loopwright.checkpoint import list_checkpoints
from loopwright.config import ConfigError, load_config
from loopwright.data.order import permutation
from loopwright.data.seeding import seed_everything
from loopwright.doors.configured import Experiment
from loopwright.errors import ConfigurationError
from loopwright.run import MetricsStore, RunManifest

from ...loops import assert_same_model
from ...runs import KillAt, Killed
from .parts import Net, Points


def experiment(*overrides, file="run.yaml"):
    return Experiment.from_config(load_config(file, overrides), progress="silent")


def rows(run):
    store = MetricsStore(Path(run) / "metrics.sqlite", read_only=True)
    try:
        return store.steps(), store.epochs()
    finally:
        store.close()


def train_by_hand(updates=37, width=16, weight=0.25):
    seed_everything(0)
    model, data = Net(width), Points(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), fused=True)
    seed_everything(0)
    done = epoch = 0
    while True:
        for indices in permutation(0, epoch, len(data)).split(8):
            error = model(**data.rows(indices)) - data.labels[indices]
            ((error**2).mean() + weight * error.abs().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == updates:
                return model
        epoch += 1


def test_a_run_file_trains_as_the_hand_written_loop_bit_for_bit(project):
    run = experiment()
    run.train()
    assert_same_model(run.trainer.model, train_by_hand())


def test_nothing_is_built_and_nothing_written_before_it_is_asked_for(project):
    run = experiment()
    assert run.trainer is None
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == ["mine.py", "run.yaml"]


def test_overrides_reach_the_objects(project):
    run = experiment("model.width=9", "trainer.max_updates=2", "trainer.weight=1.5")
    run.build()
    assert run.trainer.model.layers[0].out_features == 9
    assert run.trainer.weight == 1.5


def test_every_mistake_is_in_one_report_before_anything_is_built(project):
    config = load_config("run.yaml", ["+model.widht=3", "trainer.max_updates=soon", "+trainer.max_epochs=1"])
    with pytest.raises(ConfigError) as caught:
        Experiment.from_config(config)
    keys = {problem.key for problem in caught.value.problems}
    assert {"model.widht", "trainer.max_updates"} <= keys


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["~datasets.train"], "no data set `train`"),
        (["name=a/b"], "name of a folder"),
        (["trainer.callbacks=[{kind: OfflineLoss, dataset_key: tset}]"], "no data set 'tset'; did you mean test"),
        (["+optimizer.kind=SGD", "+optimizer.lr=0.1"], "there is one in `model` too"),
    ],
)
def test_mistakes_between_keys_are_reported_as_well(project, overrides, message):
    with pytest.raises(ConfigError, match=message):
        experiment(*overrides)


def test_a_trainer_that_is_none_is_refused(project):
    with pytest.raises(ConfigError, match="BaseTrainer"):
        experiment("trainer.kind=mine.Net")


# Run directories


def test_a_run_directory_says_what_ran(project):
    run = experiment("name=first", "tags=[a,b]", "trainer.max_updates=3")
    run.train()
    manifest = RunManifest.read(run.run / "run.json")
    assert (manifest.name, manifest.tags, manifest.state, manifest.seed) == ("first", ["a", "b"], "finished", 0)
    assert manifest.progress["update"] == 3
    assert manifest.packages["torch"].startswith("2.")
    assert manifest.hardware["cpus"] == os.cpu_count()
    assert manifest.data["train"]["length"] == 64
    assert manifest.data["train"]["fingerprint"] != manifest.data["test"]["fingerprint"]
    assert "the limit is reached" in (run.run / "log.txt").read_text()


def test_without_an_output_path_runs_are_filed_by_name_and_id(project):
    run = experiment("~output_path", "trainer.max_updates=2")
    run.train()
    manifest = RunManifest.read(run.run / "run.json")
    assert run.run == project / "runs" / "run" / manifest.id


def test_the_resolved_config_is_a_config_that_runs(project):
    first = experiment("trainer.max_updates=5", "model.width=9", "~output_path")
    first.train()
    again = experiment("output_path=again", file=first.run / "config.yaml")
    again.train()
    assert again.run == project / "again"
    assert again.name == first.name
    assert_same_model(again.trainer.model, first.trainer.model)
    written = yaml.safe_load((first.run / "config.yaml").read_text())
    assert (written["model"]["width"], written["trainer"]["max_updates"]) == (9, 5)


def test_the_code_of_a_run_is_kept_with_it(project):
    first = experiment("trainer.max_updates=2")
    first.train()
    (project / "mine.py").write_text("raise RuntimeError('gone')")
    metrics = Experiment.from_run(first.run, progress="silent").evaluate("test")
    assert metrics == first.evaluate("test")


def test_a_second_run_never_overwrites_a_first(project):
    first = experiment("trainer.max_updates=3")
    first.train()
    before = {path: path.read_bytes() for path in first.run.rglob("*") if path.is_file() and path.name != ".lock"}
    second = experiment("trainer.max_updates=3")
    second.train(resume=False)
    third = experiment("model.width=7", "trainer.max_updates=3")
    third.train()
    assert [run.run.name for run in (first, second, third)] == ["out", "out-2", "out-3"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_finished_run_is_not_trained_again(project):
    first = experiment("trainer.max_updates=3")
    first.train()
    again = experiment("trainer.max_updates=3")
    history = again.train()
    assert again.run == first.run
    assert history.epochs == first.trainer.history.epochs


def test_a_finished_run_without_an_output_path_is_followed_by_another(project):
    runs = [experiment("~output_path", "trainer.max_updates=2") for _ in range(2)]
    for run in runs:
        run.train()
    assert runs[0].run != runs[1].run


@pytest.mark.parametrize("place", [["~output_path"], []])
def test_an_unfinished_run_is_continued_exactly(project, place):
    straight = experiment("output_path=straight")
    straight.train()
    killed = experiment(*place)
    killed.build()
    killed.trainer.engine.add_callback(KillAt(21))
    with pytest.raises(Killed):
        killed.train()
    resumed = experiment(*place)
    resumed.train()
    assert resumed.run == killed.run
    assert_same_model(resumed.trainer.model, straight.trainer.model)
    assert rows(resumed.run) == rows(straight.run)


def test_a_run_of_another_config_is_not_continued(project):
    killed = experiment("~output_path")
    killed.build()
    killed.trainer.engine.add_callback(KillAt(9))
    with pytest.raises(Killed):
        killed.train()
    other = experiment("~output_path", "model.width=8", "trainer.max_updates=2")
    other.train()
    assert other.run != killed.run


def test_a_longer_limit_and_other_tags_leave_it_the_same_run(project):
    first = experiment("trainer.max_updates=3")
    first.train()
    longer = experiment("trainer.max_updates=6", "tags=[long]")
    longer.train()
    assert longer.run == first.run
    assert longer.trainer.progress.update == 6


def test_a_run_goes_on_from_another_runs_checkpoint_in_a_directory_of_its_own(project):
    first = experiment("trainer.max_updates=9")
    first.train()
    point = list_checkpoints(first.run)[-1].path
    second = experiment("trainer.max_updates=12", "output_path=second")
    second.train(resume=point)
    assert second.run == project / "second"
    assert_same_model(second.trainer.model, train_by_hand(12))


def test_resuming_from_nowhere_is_an_error(project):
    with pytest.raises(ConfigurationError, match="does not exist"):
        experiment("resume=nowhere").train()


def test_other_data_in_a_continued_run_is_mentioned(project, capsys):
    experiment("trainer.max_updates=2").train()
    module = (project / "mine.py").read_text()
    (project / "mine.py").write_text(module.replace("self.labels = self", "self.labels = 2 * self"))
    os.utime(project / "mine.py", (0, 0))
    sys.modules.pop("mine")
    Experiment.from_config(load_config("run.yaml", ["trainer.max_updates=4"]), progress="lines").train()
    said = capsys.readouterr().out
    assert "data set 'train' is not the one that the run began with" in said
    assert "code has changed since the run began: mine.py" in said


def test_uncommitted_changes_are_kept_with_the_run(project):
    def git(*arguments):
        identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", *arguments], check=True, capture_output=True, env=os.environ | identity)

    git("init")
    git("add", "mine.py", "run.yaml")
    git("commit", "-m", "one")
    with open("mine.py", "a") as file:
        file.write("# changed\n")
    (project / "new.txt").write_text("new")
    run = experiment("trainer.max_updates=1")
    run.train()
    diff = (run.run / "code.diff").read_text()
    assert "+# changed" in diff
    assert "# not under version control: new.txt" in diff


def test_a_failed_run_says_so_in_manifest_and_log(project):
    run = experiment("trainer.target_properties=[absent]")
    with pytest.raises(ValueError, match="absent"):
        run.train()
    assert RunManifest.read(run.run / "run.json").state == "failed"
    log = (run.run / "log.txt").read_text()
    assert "Traceback" in log
    assert "absent" in log


def test_a_run_that_failed_before_its_first_step_says_so_too(project):
    run = experiment("+trainer.callbacks.1.kind=EarlyStopping", "+trainer.callbacks.1.metric=absent_loss")
    with pytest.raises(ConfigurationError, match="absent_loss"):
        run.train()
    manifest = RunManifest.read(run.run / "run.json")
    assert manifest.state == "failed"
    assert "absent_loss" in manifest.reason
    assert "Failed before the first step" in (run.run / "log.txt").read_text()


# Afterwards


def test_evaluation_callbacks_run_once_on_a_finished_run(project):
    run = experiment()
    run.train()
    later = Experiment.from_run(run.run, progress="silent")
    measured = later.evaluate()
    assert set(measured) == {"test_loss", "test_mse", "test_mae"}
    assert measured == run.evaluate()
    assert measured["test_loss"] == later.evaluate("test")["loss"]


def test_without_evaluation_callbacks_every_other_data_set_is_evaluated(project):
    run = experiment("trainer.callbacks=[]", "trainer.max_updates=2")
    run.train()
    assert set(run.evaluate()) == {"test_loss", "test_mse", "test_mae"}


def test_the_best_model_of_a_run_can_be_evaluated(project):
    run = experiment("+trainer.callbacks.1.kind=BestCheckpoint", "+trainer.callbacks.1.metric=test_loss",
                     "+trainer.callbacks.1.every_n_updates=10", "trainer.max_updates=31")  # fmt: skip
    run.train()
    [kept] = [info for info in list_checkpoints(run.run) if info.kind == "kept"]
    later = Experiment.from_run(run.run, progress="silent")
    assert later.evaluate(checkpoint="best")["test_loss"] == kept.metric[1]
    assert later.evaluate(checkpoint="newest") == run.evaluate()


def test_predictions_come_batch_by_batch(project):
    run = experiment("trainer.max_updates=2")
    run.train()
    outputs = Experiment.from_run(run.run, progress="silent").predict("test")
    assert [len(output) for output in outputs] == [8, 8, 8, 8]
    assert torch.equal(torch.cat(outputs), run.trainer.predict("test"))


def test_evaluating_before_training_says_what_to_do(project):
    with pytest.raises(ConfigurationError, match="call `train` first"):
        experiment().evaluate()


def test_a_folder_that_is_no_run_is_refused(project):
    with pytest.raises(ConfigurationError, match="holds no run"):
        Experiment.from_run(project)


# What a run file can say


def test_an_optimizer_has_options_for_parts_of_the_model(project):
    run = experiment(
        "++model.optimizer.modifiers={layers.0: {lr_scale: 0.5}}", "++model.optimizer.no_decay=true",
        "++model.optimizer.weight_decay=0.1",
    )  # fmt: skip
    run.build()
    found = {(group["lr"], group["weight_decay"]) for group in run.trainer.optimizer.param_groups}
    assert found == {(0.005, 0.1), (0.005, 0.0), (0.01, 0.1), (0.01, 0.0)}


def test_without_an_optimizer_there_is_adamw(project):
    run = experiment("~model.optimizer")
    run.build()
    assert type(run.trainer.optimizer) is torch.optim.AdamW


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
    run = experiment("++scheduler={kind: ExponentialLR, gamma: 0.5, every: update}", "trainer.max_updates=4")
    run.train()
    assert run.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.5**4)


@pytest.mark.parametrize("where", ["initializer", "trainer.initializer"])
def test_a_run_begins_with_the_weights_of_an_earlier_one(project, where):
    first = experiment("trainer.max_updates=5")
    first.train()
    second = experiment(
        f"++{where}={{kind: FromCheckpoint, path: {first.run}}}", "trainer.max_updates=0", "output_path=second"
    )
    second.train()
    assert_same_model(second.trainer.model, first.trainer.model)


def test_data_sets_that_draw_random_numbers_differ_from_each_other_and_not_from_run_to_run(project):
    with open("mine.py", "a") as file:
        file.write("\n\nclass Drawn(Points):\n    def __init__(self):\n        super().__init__(4)\n")
        file.write("        self.labels = torch.rand(4)\n")
    overrides = ["datasets={train: {kind: mine.Drawn}, test: {kind: mine.Drawn}}"]
    runs = [experiment(*overrides) for _ in range(2)]
    for run in runs:
        run.build()
    first, second = (run.trainer.datasets for run in runs)
    assert not torch.equal(first["train"].labels, first["test"].labels)
    assert torch.equal(first["train"].labels, second["train"].labels)


# A process that is killed


PROGRAM = """
import os, signal
import torch
torch.set_num_threads(1)
from loopwright import Callback
from loopwright.callbacks import Checkpoints
from loopwright.config import load_config
from loopwright.doors.configured import Experiment

class Kill(Callback):
    def on_train_step_start(self, trainer, batch):
        if trainer.progress.update == 23:
            os.kill(os.getpid(), signal.SIGKILL)

run = Experiment.from_config(load_config("run.yaml", ["trainer.callbacks.1.every_updates=3"]), progress="silent")
run.build()
run.trainer.engine.add_callback(Kill())
run.train()
"""


def test_a_run_whose_process_was_killed_continues_exactly(project):
    text = (project / "run.yaml").read_text()
    (project / "run.yaml").write_text(text.replace("}]}", "}, {kind: Checkpoints, every_updates: 5, keep: 2}]}"))
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = project / "out"
    assert json.loads((killed / "run.json").read_text())["state"] == "running"
    assert [info.name for info in list_checkpoints(killed)]
    resumed = experiment("trainer.callbacks.1.every_updates=3")
    resumed.train()
    assert resumed.run == killed
    assert_same_model(resumed.trainer.model, train_by_hand())
    straight = experiment("trainer.callbacks.1.every_updates=3", "output_path=straight")
    straight.train()
    assert rows(killed) == rows(straight.run)
