"""The files of docs/configured.md: the run file trains what the module beside it has."""

from __future__ import annotations

import re
from pathlib import Path

from loopwright.config import load_config
from loopwright.interfaces.configured import Experiment

TEXT = (Path(__file__).parents[3] / "docs" / "configured.md").read_text(encoding="utf-8")


def test_the_run_file_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = re.search(r"<!-- file: mine.py -->\n```python\n(.*?)```", TEXT, re.S)
    run = re.search(r"```yaml\n(# run.yaml\n.*?)```", TEXT, re.S)
    Path("mine.py").write_text(module[1])
    Path("run.yaml").write_text(run[1])
    history = Experiment.from_config(
        load_config("run.yaml", ["trainer.max_epochs=2"]), progress="silent"
    ).train()
    assert history.last("loss") < history["loss"][0]
    assert history.last("test_entropy") > 0
