"""A tracker that sends a run to an MLflow server, or to a local store of MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..metrics.media import Media
from .files import write_media
from .track import Track
from .tracker import EndState, TrackedRow, TrackedRun

STATES: dict[EndState, str] = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
# that MLflow takes in one request
MOST_METRICS = 1000
MOST_PARAMS = 100
LONGEST = 6000  # characters of a parameter


class MLflow(Track):
    """Sends a run to MLflow: metrics over steps, the config as parameters, and media as artifacts.

    A run that is resumed from its run directory goes on in the same run of MLflow, and steps that
    were sent before are not sent again. Look at a local store with
    `mlflow ui --backend-store-uri sqlite:///mlflow.db`.

    Args:
        experiment: The name of the experiment, which is made where there is none.
        name: The name of the run. Default: that of the run.
        uri: The address of the server or store. Default: the variable MLFLOW_TRACKING_URI, or
            `sqlite:///mlflow.db` here.
        every: Send every n-th step only. Epochs are all sent.

    >>> from loopwright.trackers import MLflow
    >>> MLflow("my-experiment", uri="sqlite:///mlflow.db").every
    1
    """

    package = "mlflow"

    def __init__(
        self,
        experiment: str = "loopwright",
        *,
        name: str | None = None,
        uri: str | None = None,
        every: int = 1,
    ) -> None:
        super().__init__(MLflowRun(experiment, name, uri), every=every)


class MLflowRun:
    """The tracker behind `MLflow`."""

    def __init__(self, experiment: str, name: str | None, uri: str | None) -> None:
        self.experiment = experiment
        self.name = name
        self.uri = uri
        self._client: Any = None
        self._id = ""

    def start(self, run: TrackedRun) -> None:
        here = f"sqlite:///{Path('mlflow.db').absolute()}"
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or here
        self._client = import_module("mlflow").MlflowClient(tracking_uri=uri)
        noted = run.memory.get("id")
        if run.is_resumed and isinstance(noted, str):
            self._id = noted
            self._client.update_run(noted, status="RUNNING")
            return
        tags = {f"tag.{tag}": "true" for tag in run.tags}
        made = self._client.create_run(
            self._experiment_id(uri), run_name=self.name or run.name, tags=tags
        )
        self._id = run.memory["id"] = made.info.run_id
        self._log_config(run)

    def _experiment_id(self, uri: str) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        place = None
        if uri.startswith("sqlite:///"):  # or artifacts would go to the working directory
            folder = Path(uri.removeprefix("sqlite:///")).absolute().parent
            place = (folder / "mlartifacts" / self.experiment).as_uri()
        return str(self._client.create_experiment(self.experiment, artifact_location=place))

    def _log_config(self, run: TrackedRun) -> None:
        param = import_module("mlflow.entities").Param
        params = iter(
            [param(_name(key), str(value)[:LONGEST]) for key, value in run.config.items()]
        )
        while some := list(islice(params, MOST_PARAMS)):
            self._client.log_batch(self._id, params=some)

    def log(self, rows: Sequence[TrackedRow]) -> None:
        metrics = self._metrics(rows)
        while some := list(islice(metrics, MOST_METRICS)):
            self._client.log_batch(self._id, metrics=some)

    def _metrics(self, rows: Sequence[TrackedRow]) -> Iterator[Any]:
        metric = import_module("mlflow.entities").Metric
        for row in rows:
            for name, value in row.values.items():
                yield metric(_name(name), value, int(row.wall * 1000), row.step)

    def log_media(self, media: Media) -> None:
        with TemporaryDirectory() as folder:
            for file in write_media(Path(folder), media):
                self._client.log_artifact(self._id, str(file), f"media/{_name(media.name)}")

    def finish(self, state: EndState, reason: str | None) -> None:
        if reason is not None:
            self._client.set_tag(self._id, "loopwright.reason", reason[:LONGEST])
        self._client.set_terminated(self._id, STATES[state])


def _name(name: str) -> str:
    """A name with the signs that MLflow takes, which is no path to anything else."""
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join(part.strip(".") or "_" for part in parts)
