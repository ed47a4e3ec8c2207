"""Which run and which checkpoint a command means: every command that takes RUN or --checkpoint asks
here."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, ConfigurationError
from ..run.reading import CONFIG, MANIFEST, RunView, find_runs
from .commands import LAST, PROGRAMS, ROOT
from .output import number_text

if TYPE_CHECKING:
    from ..checkpoint import CheckpointInfo

MAX_LISTED = 6
RECORDED = (
    "Runs are recorded by Trainer(..., run_dir='runs/first') and by `loopwright train run.yaml`. "
    "To look in another folder, "
)
IN_PYTHON = {
    "sweep": " In Python, write a loop over the values, with a run_dir for each.",
    "lr-find": " In Python, call loopwright.tuning.find_learning_rate(trainer, data).",
    "batch-size-find": " In Python, call loopwright.tuning.find_batch_size(trainer, data).",
}
FILES_OF_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")


# Runs


def find_run(text: str, root: str = ROOT) -> RunView:
    """Look up a run by path, id, name or `last`; an error lists the candidates."""
    if place := _place_from_the_end(text):
        return newest_runs(root, place, text)[-1]
    if found := _at(Path(text)) or _at(Path(root) / text):
        return _only(found, text, root)
    runs = all_runs(root)
    exact = [run for run in runs if text in _words(run, root)]
    if found := exact or [
        run for run in runs if any(word.startswith(text) for word in _words(run, root))
    ]:
        return _only(found, text, root)
    raise ConfigurationError(_no_run(text, runs, root))


def newest_runs(root: str, count: int, text: str = LAST) -> list[RunView]:
    """The newest runs, the newest first; an error says what to do where there are not as many."""
    runs = all_runs(root)
    if not runs:
        raise ConfigurationError(no_runs_text(root))
    if len(runs) < count:
        has = "only one run" if len(runs) == 1 else f"only {len(runs)} runs"
        raise ConfigurationError(
            f"There is no run {text!r}: {root}/ has {has}.{_listed(runs, root)}"
        )
    return runs[:count]


def find_two_runs(first: str | None, second: str, root: str) -> tuple[RunView, RunView]:
    """Two runs to compare; where none is named, the last but one and the last."""
    if first is None:
        newest, *others = all_runs(root) or newest_runs(root, 1)
        if not others:
            only = short_path(newest, root)
            raise ConfigurationError(
                f"There is only one run in {root}/, {only}: name the runs to compare."
            )
        return others[0], newest
    one = find_run(first, root)
    two = find_run(second, root)
    if one.path == two.path and second == LAST:
        raise ConfigurationError(
            f"{short_path(one, root)} is the last run itself: name the run to compare it with."
        )
    return one, two


def all_runs(root: str | Path) -> list[RunView]:
    """All runs below a folder, the newest first; nothing where there is no such folder."""
    return sorted(
        map(RunView, find_runs(root)), key=lambda run: (_started(run), str(run.path)), reverse=True
    )


def no_runs_text(root: str | Path, elsewhere: str = "add --root DIR") -> str:
    """What is said where a folder has no runs, with what to do."""
    if Path(MANIFEST).is_file():
        return f"There are no runs in {root}/, but this folder is a run itself: name it as `.`"
    where = "yet" if Path(root).is_dir() else "(there is no such folder)"
    return f"There are no runs in {str(root).rstrip('/')}/ {where}. {RECORDED}{elsewhere}."


def short_path(run: RunView, root: str | Path) -> str:
    """The path of a run relative to the folder of runs; the full path of a run elsewhere."""
    try:
        return str(run.path.relative_to(Path(root).absolute()))
    except ValueError:
        return str(run.path)


def _at(path: Path) -> list[RunView]:
    """The run at a path, or all runs in the folder there."""
    path = path.parent if path.name == MANIFEST else path
    return all_runs(path) if path.is_dir() else []


def _only(found: list[RunView], text: str, root: str) -> RunView:
    if len(found) == 1:
        return found[0]
    raise ConfigurationError(
        f"{text!r} could be any of {len(found)} runs:{_listed(found, root)}\nName one of them."
    )


def _started(run: RunView) -> float:
    return 0.0 if run.started is None else run.started.timestamp()


def _place_from_the_end(text: str) -> int | None:
    """1 for `last` and `-1`, 2 for `last~1` and `-2`, and so on."""
    if text.lower() == LAST:
        return 1
    found = re.fullmatch(r"-([1-9]\d{0,5})|last~(\d{1,6})", text)
    return None if found is None else int(found[1]) if found[1] else int(found[2]) + 1


def _words(run: RunView, root: str) -> tuple[str, ...]:
    return run.id, run.name, run.path.name, short_path(run, root)


def _no_run(text: str, runs: list[RunView], root: str) -> str:
    path = Path(text)
    if path.suffix in (".yaml", ".yml", *PROGRAMS):
        return (
            f"{text} is not a run. A run is a directory that training has written, such as "
            "runs/first, or `last`."
        )
    if path.exists() and (outer := _enclosing(path)):
        return (
            f"{text} is inside the run {outer}: name the run itself, and a checkpoint with "
            "--checkpoint."
        )
    if not runs:
        return f"There is no {_what(text)}. {no_runs_text(root)}"
    if runs[0].path.exists() and text in _metric_names(runs[0]):
        return (
            f"There is no run {text!r}. It is a metric, which `loopwright plot --metric "
            f"{text}` draws."
        )
    words = {word: run for run in reversed(runs) for word in _words(run, root)}
    near = difflib.get_close_matches(text, words, n=MAX_LISTED, cutoff=0.5)
    candidates = list({id(words[word]): words[word] for word in near}.values())
    if candidates:
        return f"There is no {_what(text)} in {root}/. Did you mean:{_listed(candidates, root)}"
    return f"There is no {_what(text)} in {root}/. The newest are:{_listed(runs, root)}"


def _what(text: str) -> str:
    """A name as it is quoted in a message: a path is a folder, another word a run."""
    return f"folder {text}" if "/" in text and not Path(text).exists() else f"run {text!r}"


def _enclosing(path: Path) -> Path | None:
    return next((outer for outer in path.parents if (outer / MANIFEST).is_file()), None)


def _metric_names(run: RunView) -> list[str]:
    try:
        return run.metrics.names()
    except CheckpointError:
        return []


def _listed(runs: list[RunView], root: str) -> str:
    lines = [
        f"\n  {short_path(run, root)}  ({run.state}, id {run.id})" for run in runs[:MAX_LISTED]
    ]
    more = len(runs) - len(lines)
    return "".join(lines) + (
        f"\n  and {more} more (`loopwright runs` lists them)" if more > 0 else ""
    )


# Run files


def check_run_file(text: str, command: str) -> None:
    """Raise an error that says what to do, where CONFIG is a program, a run, a folder, or not there
    at all."""
    path = Path(text)
    if path.suffix in PROGRAMS:
        raise ConfigurationError(_about_program(path, command))
    takes = f"`loopwright {command}` takes a run file (YAML)"
    if (path / MANIFEST).is_file():
        resumes = f" {resume_text(RunView(path))}" if command == "train" else ""
        raise ConfigurationError(f"{text} is a run, and {takes}.{resumes}")
    if path.is_dir():
        files = _run_files(path)
        found = (
            f": name a file in it, such as {files[0]}."
            if files
            else ", and there is no YAML file in it."
        )
        raise ConfigurationError(f"{text} is a folder, and {takes}{found}")
    if not path.exists():
        near = _run_files(Path())
        found = (
            f"This folder has: {', '.join(near[:6])}."
            if near
            else "`loopwright init` writes an example."
        )
        raise ConfigurationError(f"There is no file {text}. {found}")


def _run_files(folder: Path) -> list[str]:
    return sorted(str(file) for pattern in ("*.yaml", "*.yml") for file in folder.glob(pattern))


def _about_program(path: Path, command: str) -> str:
    if path.suffix == ".ipynb":
        return (
            f"{path} is a notebook, and `loopwright {command}` takes a run file (YAML). Run "
            "the notebook itself."
        )
    head = f"{path} is a Python program, and `loopwright {command}` takes a run file (YAML)."
    if command != "train":
        return head + IN_PYTHON.get(command, "")
    return (
        f"{head} Start the program itself:\n  python {path}\nOn several processes:\n"
        f"  torchrun --nproc-per-node 2 {path}\nTo train from run files instead, `loopwright "
        "init` writes an example."
    )


def name_run_file() -> str:
    """What is said where neither a run file nor a run is named."""
    files = _run_files(Path())
    text = (
        f"Name a run file, as in `loopwright train {files[0] if files else 'run.yaml'}`, or a "
        "run to resume, as in "
    )
    return f"{text}`loopwright train --resume last`." + (
        "" if files else " `loopwright init` writes an example."
    )


def resume_text(run: RunView) -> str:
    """How to resume a run: by its config, or by the program that started it."""
    if (run.path / CONFIG).is_file():
        return f"To resume it: loopwright train --resume {run.path}"
    command = program_of(run) or "(its command was not recorded)"
    return f"It was started by a program. To resume it, run the program again:\n  {command}"


# Checkpoints


def pick_checkpoint(run: RunView | Path, which: str | None = None) -> CheckpointInfo:
    """The checkpoint of a run, or of a folder of checkpoints, that a command means.

    By default this is the best kept model, or the newest resume point if the run kept none. `which`
    is `best`, `newest` (or `last`), the number of an update, or the name or path of a checkpoint.
    """
    from ..checkpoint import list_checkpoints
    from ..checkpoint.inspect import is_checkpoint
    from ..run.best import choose

    folder = run if isinstance(run, Path) else run.path
    found = list_checkpoints(folder)
    if which in (None, "best"):
        best = choose(run)
        if best is not None:
            return best
        if which == "best":
            raise ConfigurationError(f"{folder} kept no best model: use --checkpoint newest.")
    elif which not in ("newest", LAST):
        is_path = not which.isdecimal() and is_checkpoint(Path(which))
        return (
            list_checkpoints(Path(which).absolute())[0] if is_path else _named(folder, found, which)
        )
    sound = [info for info in found if info.is_sound]
    points = [info for info in sound if info.kind == "resume"] or sound
    if not points:
        raise ConfigurationError(_no_checkpoint(folder, found))
    return points[-1]


def _no_checkpoint(folder: Path, found: list[CheckpointInfo]) -> str:
    if found:
        return (
            f"Every checkpoint of {folder} is damaged: `loopwright checkpoint verify "
            f"{folder}` says how."
        )
    return f"{folder} has no checkpoint yet."


def _named(folder: Path, found: list[CheckpointInfo], which: str) -> CheckpointInfo:
    name = f"update-{int(which):08d}" if which.isdecimal() else which.rstrip("/")
    fits = [info for info in found if name in (info.name, f"{info.path.parent.name}/{info.name}")]
    if not fits:
        names = ", ".join(f"{info.path.parent.name}/{info.name}" for info in found) or "none"
        raise ConfigurationError(f"{folder} has no checkpoint {which!r}; it has: {names}.")
    return fits[-1]  # a resume point and a kept model of one update hold the same weights


def checkpoint_name(run: RunView, info: CheckpointInfo) -> str:
    """The path of a checkpoint relative to its run, the full path of one elsewhere; with the metric
    it was kept by."""
    name = (
        str(info.path.relative_to(run.path))
        if info.path.is_relative_to(run.path)
        else str(info.path)
    )
    return (
        name if info.metric is None else f"{name} ({info.metric[0]} {number_text(info.metric[1])})"
    )


def find_source(text: str, root: str, which: str | None = None) -> Path:
    """The checkpoint or file of weights that CHECKPOINT names; of a run, what `pick_checkpoint`
    picks."""
    from ..checkpoint.inspect import is_checkpoint

    path = Path(text)
    if path.name != MANIFEST and (path.is_file() or is_checkpoint(path)):
        return path
    if path.suffix in FILES_OF_WEIGHTS:
        raise ConfigurationError(f"There is no file {text}.")
    return pick_checkpoint(find_folder(text, root), which).path


def find_folder(text: str, root: str) -> Path:
    """The run, the folder of checkpoints or the checkpoint that RUN names."""
    from ..checkpoint import list_checkpoints

    path = Path(text)
    if path.is_dir():
        try:
            list_checkpoints(path)
        except CheckpointError:  # a folder without checkpoints: of runs, perhaps
            return find_run(text, root).path
        return path
    return find_run(text, root).path


def require_config(run: RunView, *python: str) -> None:
    """Raise an error if a program, not a run file, started the run; it says what to write in Python
    instead."""
    if run.config is not None or (run.path / CONFIG).is_file():
        return
    program = program_of(run)
    named = "" if program is None else f" ({program})"
    raise ConfigurationError(
        f"{run.path} was started by a program{named}, not from a run file, so this command cannot "
        "build its model and data. In Python:\n" + "\n".join(f"  {line}" for line in python)
    )


def check_model(source: Path, model: str | None) -> None:
    """Raise an error that lists the models of a checkpoint, where --model has to choose one and
    does not."""
    from ..checkpoint.inspect import is_checkpoint
    from ..checkpoint.manifest import read_manifest

    models = sorted(read_manifest(source).models) if is_checkpoint(source) else []
    if models and (model not in models if model is not None else len(models) > 1):
        wrong = "" if model is None else f", but not {model!r}"
        raise ConfigurationError(
            f"{source} has the models {', '.join(models)}{wrong}: add --model {models[0]}."
        )


def lines_in_python(run: RunView, method: str) -> list[str]:
    """How to evaluate or predict in the program of a run; interfaces other than the native one have
    their own methods."""
    if run.manifest.get("door", "native") == "native":
        return [f"trainer.load_weights({str(run.path)!r})", f"trainer.{method}(data)"]
    return [
        f"model.load_state_dict(loopwright.load_weights({str(run.path)!r}))",
        "# then as your program does it",
    ]


def program_of(run: RunView) -> str | None:
    """The command line that started a run, as its manifest has it."""
    command = run.manifest.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) and command else None
