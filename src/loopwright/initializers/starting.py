"""Initialisers: what a fresh run begins with. A run that goes on where it was interrupted does without them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import nn

from ..errors import ConfigurationError
from ..hooks import Callback

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .loading import LoadReport


class Initializer(Callback):
    """Changes the models of a trainer before the first step of a run. Override `initialize`.

    It is a callback that hears of the start before all others, so that averages and the like begin with its weights.
    """

    precedence = -1

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.progress.step == 0:
            self.initialize(trainer)

    def initialize(self, trainer: Trainer) -> None:
        """Give the models the weights to begin with."""


class FromCheckpoint(Initializer):
    """Begins with the weights of an earlier run, a checkpoint, or a safetensors or `.pt` file.

    `rename`, `remove`, `reinit`, `strict` and `use` are those of `load_matching`; by default everything has to fit
    that is not excepted. With several models, `model` names the one that is loaded into and `source_model` the one in
    the source. `report` says what was loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rename: Mapping[str, str] | None = None,
        remove: Sequence[str] = (),
        reinit: Sequence[str] = (),
        strict: bool = True,
        use: Literal["newest", "best", "any"] = "newest",
        model: str | None = None,
        source_model: str | None = None,
    ) -> None:
        if use not in ("newest", "best", "any"):
            raise ConfigurationError(f"FromCheckpoint(use={use!r}): say 'newest', 'best' or 'any'.")
        self.path = Path(path)
        self.rename = dict(rename or {})
        self.remove, self.reinit = tuple(remove), tuple(reinit)
        self.strict = strict
        self.use: Literal["newest", "best", "any"] = use
        self.model = model
        self.source_model = source_model
        self.report: LoadReport | None = None

    def apply(self, model: nn.Module) -> LoadReport:
        """Load into this model now."""
        from .loading import load_matching

        self.report = load_matching(
            model,
            self.path,
            rename=self.rename,
            remove=self.remove,
            reinit=self.reinit,
            strict=self.strict,
            use=self.use,
            source_model=self.source_model,
        )
        return self.report

    def initialize(self, trainer: Trainer) -> None:
        trainer.say(str(self.apply(self._target(trainer))))

    def _target(self, trainer: Trainer) -> nn.Module:
        models = {n: m for n, m in trainer.models.items() if any(True for _ in m.parameters())}
        if self.model is None and len(models) == 1:
            return next(iter(models.values()))
        if self.model is None or self.model not in models:
            near = difflib.get_close_matches(self.model or "", models, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"FromCheckpoint(model={self.model!r}): say which of the models {', '.join(models)} to load into.{hint}"
            )
        return models[self.model]


class Resume:
    """Begins with the complete state of another run: `trainer.train(..., resume=Resume("runs/a").point(run_dir))`.

    The other run is read and not touched. Once the new run has resume points of its own, it goes on from those.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def point(self, run_dir: str | Path | None = None) -> str | Path:
        """What to give to `train(resume=)`."""
        from ..checkpoint.inspect import find_checkpoint, list_checkpoints

        has_folder = run_dir is not None and (Path(run_dir) / "checkpoints").is_dir()
        if run_dir is not None and has_folder and any(i.kind == "resume" for i in list_checkpoints(run_dir)):
            return "auto"
        return find_checkpoint(self.path)
