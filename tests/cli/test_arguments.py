"""Arguments that all commands take: files, options and KEY=VALUE in any order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.projects import CONFIG, Project, Shell


def test_a_file_may_come_after_an_option(project: Project, shell: Shell):
    project.write("bad.yaml", CONFIG + "sed: 1\n")
    assert (
        shell("config", "validate", "run.yaml", "--json", "bad.yaml", "trainer.max_epochs=3") == 1
    )
    assert [(entry["file"], len(entry["problems"])) for entry in json.loads(shell.out)] == [
        ("run.yaml", 0),
        ("bad.yaml", 1),
    ]


def test_an_unknown_option_before_a_file_is_still_refused(
    project: Project, shell: Shell, capsys: Any
):
    with pytest.raises(SystemExit) as left:
        shell("config", "validate", "run.yaml", "--jsn", "run.yaml")
    assert left.value.code == 2
    assert "does not take '--jsn'. Did you mean --json?" in capsys.readouterr().err
