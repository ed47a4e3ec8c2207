"""The example of the configured interface: it solves its equation, and its operator learns to."""

import re
import sys
from pathlib import Path

import pytest
import torch

from loopwright.config import beside, load_config
from loopwright.interfaces.configured import Experiment

FOLDER = Path(__file__).parents[3] / "examples" / "configured"


@pytest.fixture
def burgers():
    with beside(FOLDER):
        import burgers

        yield burgers
    del sys.modules["burgers"]


def test_the_fields_are_a_solution_of_the_equation(burgers):
    _, before = burgers.random_fields(4, 64, torch.Generator().manual_seed(0))
    after = burgers.solve_burgers(before, viscosity=0.1)
    finer = burgers.solve_burgers(before, viscosity=0.1, steps=400)
    assert torch.allclose(after, finer, atol=1e-6)
    step = 1e-3
    later = burgers.solve_burgers(before, viscosity=0.1, time=step, steps=4)
    waves = torch.arange(33, dtype=torch.float64)
    slope = torch.fft.irfft(1j * waves * torch.fft.rfft(before), n=64)
    curvature = torch.fft.irfft(-(waves**2) * torch.fft.rfft(before), n=64)
    expected = -before * slope + 0.1 * curvature
    assert torch.allclose((later - before) / step, expected, rtol=0.05, atol=0.05)


def test_a_shortened_run_is_clearly_better_than_its_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = ["trainer.max_epochs=5", "datasets.test.count=32", "model.width=16"]
    run = Experiment.from_config(load_config(FOLDER / "run.yaml", overrides))
    run.train()
    said = re.search(
        r"Relative error on test: ([\d.]+); of leaving the field as it is: ([\d.]+)",
        capsys.readouterr().out,
    )
    assert float(said[1]) < 0.3 * float(said[2])
    assert float(said[1]) == pytest.approx(run.evaluate()["test_relative_error"], abs=1e-3)
