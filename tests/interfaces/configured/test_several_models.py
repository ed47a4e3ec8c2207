"""Several models in one run, each with its optimizer: from Python, and from a run file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopwright.cli import main
from loopwright.data.order import permutation
from loopwright.data.random import seed_everything
from loopwright.interfaces.configured import Experiment

from ...loops import assert_same_model
from ...runs import KillAt, Killed
from . import gan
from .experiments import experiment, rows

RUN = """\
seed: 0
output_path: out
model:
  generator:
    {kind: mine.Generator, width: 6, optimizer: {kind: Adam, lr: 0.01}, scheduler: {kind: StepLR, step_size: 1}}
  discriminator: {kind: mine.Discriminator, optimizer: {kind: SGD, lr: 0.1}}
datasets: {train: {kind: mine.Pairs}, test: {kind: mine.Pairs, seed: 1}}
trainer: {kind: mine.Gan, max_updates: 10, effective_batch_size: 8,
          callbacks: [{kind: OfflineLoss, dataset_key: test, every_n_updates: 2}]}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    with open(gan.__file__) as module:
        (tmp_path / "mine.py").write_text(module.read())
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_hand(updates=10, lr=0.01):
    """The same run as a plain loop."""
    seed_everything(0)
    generator, discriminator, data = gan.Generator(6), gan.Discriminator(), gan.Pairs()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=lr, fused=True)
    d_optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(g_optimizer, step_size=1)
    seed_everything(0)
    done = epoch = 0
    while True:
        for indices in permutation(0, epoch, len(data)).split(8):
            fake = generator(data.z[indices])
            real, false = discriminator(data.x[indices]), discriminator(fake.detach())
            (nn.functional.softplus(-real).mean() + nn.functional.softplus(false).mean()).backward()
            d_optimizer.step()
            d_optimizer.zero_grad()
            nn.functional.softplus(-discriminator(fake)).mean().backward()
            g_optimizer.step()
            g_optimizer.zero_grad()
            d_optimizer.zero_grad()
            done += 1
            if done == updates:
                return generator, discriminator
        epoch += 1
        scheduler.step()


def test_a_run_file_with_two_models_trains_as_the_loop_written_by_hand(project):
    run = experiment()
    run.train()
    generator, discriminator = by_hand()
    assert_same_model(run.trainer.models["generator"], generator)
    assert_same_model(run.trainer.generator, generator)
    assert_same_model(run.trainer.model["discriminator"], discriminator)
    assert {"loss", "g", "d", "test_g"} <= {row[2] for row in rows(run.run)[0]}


def test_it_is_continued_exactly_and_evaluated_from_its_directory(project):
    first = experiment()
    first.build()
    first.trainer.engine.add_callback(KillAt(7))
    with pytest.raises(Killed):
        first.train()
    again = experiment()
    again.train()
    for name, model in zip(("generator", "discriminator"), by_hand(), strict=True):
        assert_same_model(again.trainer.models[name], model)
    later = Experiment.from_run(again.run, progress="silent")
    assert later.evaluate("test") == again.evaluate("test")
    outputs = torch.cat(later.predict("test"))
    assert torch.equal(outputs, by_hand()[0](gan.Pairs(seed=1).z).detach())


def test_check_says_what_is_not_evaluated_and_predicted(project, capsys):
    (project / "run.yaml").write_text(
        RUN.replace("mine.Gan", "mine.Bare").partition(",\n          callbacks")[0] + "}\n"
    )
    assert main(["check", "run.yaml"]) == 0
    out = capsys.readouterr().out
    assert "No mistakes found" in out
    assert "update-in-evaluation" in out
    assert "prediction on" not in out


def test_one_optimizer_may_be_for_all_and_one_model_may_go_without(project):
    text = RUN.replace(
        ", optimizer: {kind: Adam, lr: 0.01}, scheduler: {kind: StepLR, step_size: 1}", ""
    )
    text = text.replace(", optimizer: {kind: SGD, lr: 0.1}", "").replace(
        "mine.Gan", "mine.Together"
    )
    (project / "run.yaml").write_text(text + "optimizer: {kind: SGD, lr: 0.2}\n")
    run = experiment()
    run.train()
    assert list(run.trainer.optimizers) == ["optimizer"]
    held = [p for group in run.trainer.optimizer.param_groups for p in group["params"]]
    assert len(held) == 8
    frozen = text.replace(
        "kind: mine.Generator", "kind: mine.Generator, optimizer: {kind: SGD, lr: 0.2}"
    )
    frozen = frozen.replace("kind: mine.Discriminator", "kind: mine.Discriminator, optimizer: null")
    (project / "run.yaml").write_text(frozen)
    run = experiment("output_path=other")
    run.train()
    assert list(run.trainer.optimizers) == ["generator"]
    seed_everything(0)
    gan.Generator(6)
    assert_same_model(run.trainer.models["discriminator"], gan.Discriminator())
