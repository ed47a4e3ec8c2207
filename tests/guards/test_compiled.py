"""Compiled graphs per run: one for each shape of a batch, however long the run is."""

from __future__ import annotations

import pytest

from tests.training.compiled_runs import DATA, build, traced

__all__ = ["traced"]  # a fixture
pytestmark = pytest.mark.usefixtures("traced")


@pytest.mark.parametrize(
    ("samples", "graphs"), [(32, 1), (38, 2)], ids=["even", "ragged last batch"]
)
def test_a_run_compiles_one_graph_for_each_shape_of_a_batch(samples: int, graphs: int):
    trainer = build("step")
    trainer.train((DATA[0][:samples], DATA[1][:samples]), num_epochs=3, batch_size=16)
    trainer.train((DATA[0][:samples], DATA[1][:samples]), num_epochs=1, batch_size=16)
    compiled = trainer.run.compiled
    assert compiled is not None
    assert compiled.choice == "compiled", compiled.reason
    assert len(compiled.graphs) == graphs, f"these were compiled: {compiled.graphs}"
    assert compiled.num_recompilations == graphs - 1
