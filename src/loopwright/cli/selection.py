"""Which run and which checkpoint a command means: every command that takes RUN or --checkpoint asks
here."""

from __future__ import annotations

import re
from pathlib import Path

from ..checkpoint.inspect import CheckpointInfo, is_checkpoint, list_checkpoints
from ..errors import CheckpointError, ConfigurationError
from ..run.best import choose
from ..run.directory import CONFIG, MANIFEST
from ..run.reading import Run, newest_first
from ..text import counted, listed, near_names
from .commands import LAST, PROGRAMS, ROOT
from .output import metric_text

MAX_LISTED = 6
RECORDED = (
    "Runs are recorded by Trainer(..., run_dir='runs/first') and by `loopwright train run.yaml`. "
    "To look in another folder, "
)
FILES_OF_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")


# Runs


def find_run(text: str, root: str = ROOT) -> Run:
    """Look up a run by path, id, name or `last`; an error lists the candidates."""
    from_the_end = re.fullmatch(r"last(?:~(\d{1,6}))?", text)
    if from_the_end:
        return _newest(root, int(from_the_end[1] or 0) + 1, text)
    found = _at(Path(text)) or _at(Path(root) / text)
    if not found:
        runs = newest_first(root)
        found = [run for run in runs if text in _words(run, root)] or [
            run for run in runs if any(word.startswith(text) for word in _words(run, root))
        ]
        if not found:
            raise ConfigurationError("no-such-run", _no_run(text, runs, root))
    if len(found) > 1:
        raise ConfigurationError(
            "ambiguous-run",
            f"{text!r} could be any of {len(found)} runs:{_lines(found, root)}\nName one of them.",
        )
    return found[0]


def _newest(root: str, place: int, text: str) -> Run:
    """The run at a place of the newest ones, from 1."""
    runs = newest_first(root)
    if not runs:
        raise ConfigurationError("no-runs", no_runs_text(root))
    if len(runs) < place:
        has = f"{root}/ has only {counted(len(runs), 'run')}"
        raise ConfigurationError(
            "few-runs", f"There is no run {text!r}: {has}.{_lines(runs, root)}"
        )
    return runs[place - 1]


def find_two_runs(first: str | None, second: str, root: str) -> tuple[Run, Run]:
    """Two runs to compare; where none is named, the last but one and the last."""
    if first is None:
        return find_run(f"{LAST}~1", root), find_run(LAST, root)
    one = find_run(first, root)
    two = find_run(second, root)
    if one.path == two.path and second == LAST:
        raise ConfigurationError(
            "run-with-itself",
            f"{short_path(one, root)} is the last run itself: name the run to compare it with.",
        )
    return one, two


def no_runs_text(root: str | Path, elsewhere: str = "add --root DIR") -> str:
    """What is said where a folder has no runs, with what to do."""
    where = "yet" if Path(root).is_dir() else "(there is no such folder)"
    return f"There are no runs in {str(root).rstrip('/')}/ {where}. {RECORDED}{elsewhere}."


def short_path(run: Run, root: str | Path) -> str:
    """The path of a run relative to the folder of runs; the full path of a run elsewhere."""
    try:
        return str(run.path.relative_to(Path(root).absolute()))
    except ValueError:
        return str(run.path)


def _at(path: Path) -> list[Run]:
    """The run at a path, or all runs in the folder there."""
    path = path.parent if path.name == MANIFEST else path
    return newest_first(path) if path.is_dir() else []


def _words(run: Run, root: str) -> tuple[str, ...]:
    return run.id, run.name, run.path.name, short_path(run, root)


def _no_run(text: str, runs: list[Run], root: str) -> str:
    if Path(text).suffix in (".yaml", ".yml", *PROGRAMS):
        return (
            f"{text} is not a run. A run is a directory that training has written, such as "
            "runs/first, or `last`."
        )
    missing = f"There is no run {text!r}"
    if not runs:
        return f"{missing}. {no_runs_text(root)}"
    words = {word: run for run in reversed(runs) for word in _words(run, root)}
    candidates = dict.fromkeys(words[word] for word in near_names(text, words))
    if candidates:
        return f"{missing} in {root}/. Did you mean:{_lines(list(candidates), root)}"
    return f"{missing} in {root}/. The newest are:{_lines(runs, root)}"


def _lines(runs: list[Run], root: str) -> str:
    lines = [f"{short_path(run, root)}  ({run.state}, id {run.id})" for run in runs[:MAX_LISTED]]
    if len(runs) > MAX_LISTED:
        lines.append(f"and {len(runs) - MAX_LISTED} more (`loopwright runs` lists them)")
    return "".join(f"\n  {line}" for line in lines)


# Run files


def check_run_file(text: str, command: str) -> None:
    """Raise an error that says what to do, where CONFIG is a program, a run, or not there at all."""
    path = Path(text)
    takes = f"and `loopwright {command}` takes a run file (YAML)"
    problem = None
    if path.suffix in PROGRAMS:
        problem = f"{path} is a program, {takes}. Start the program itself:\n  python {path}"
    elif (path / MANIFEST).is_file():
        resumes = f" {resume_text(Run(path))}" if command == "train" else ""
        problem = f"{text} is a run, {takes}.{resumes}"
    elif path.is_dir():
        files = sorted(str(file) for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
        problem = f"{text} is a folder, {takes}. It has: {listed(files, MAX_LISTED) or 'none'}."
    elif not path.exists():
        problem = f"There is no file {text}. `loopwright init` writes an example."
    if problem is not None:
        raise ConfigurationError("not-a-run-file", problem)


def resume_text(run: Run) -> str:
    """How to resume a run: by its config, or by the program that started it."""
    if (run.path / CONFIG).is_file():
        return f"To resume it: loopwright train --resume {run.path}"
    command = run.command or "(its command was not recorded)"
    return f"It was started by a program. To resume it, run the program again:\n  {command}"


# Checkpoints


def pick_checkpoint(run: Run | Path, which: str | None = None) -> CheckpointInfo:
    """The checkpoint of a run, or of a folder of checkpoints, that a command means.

    By default this is the best kept model, or the newest resume point if the run kept none. `which`
    is `best`, `newest` (or `last`), the number of an update, or the name or path of a checkpoint.
    """
    folder = run if isinstance(run, Path) else run.path
    found = list_checkpoints(folder)
    if which in (None, "best"):
        best = choose(run)
        if best is not None:
            return best
        if which == "best":
            raise ConfigurationError(
                "no-kept-model", f"{folder} kept no best model: use --checkpoint newest."
            )
    elif which not in ("newest", LAST):
        if not which.isdecimal() and is_checkpoint(Path(which)):
            return list_checkpoints(Path(which).absolute())[0]
        return _named(folder, found, which)
    sound = [info for info in found if info.is_sound]
    points = [info for info in sound if info.kind == "resume"] or sound
    if not points:
        verify = f"every one is damaged: `loopwright checkpoint verify {folder}` says how"
        raise ConfigurationError(
            "no-usable-checkpoint",
            f"{folder} has no checkpoint to use: {verify if found else 'none is saved yet'}.",
        )
    return points[-1]


def _named(folder: Path, found: list[CheckpointInfo], which: str) -> CheckpointInfo:
    name = f"update-{int(which):08d}" if which.isdecimal() else which.rstrip("/")
    paths = {info.path: f"{info.path.parent.name}/{info.name}" for info in found}
    fits = [info for info in found if name in (info.name, paths[info.path])]
    if not fits:
        raise ConfigurationError(
            "unknown-checkpoint",
            f"{folder} has no checkpoint {which!r}; it has: {', '.join(paths.values()) or 'none'}.",
        )
    return fits[-1]  # a resume point and a kept model of one update hold the same weights


def checkpoint_name(run: Run, info: CheckpointInfo) -> str:
    """The path of a checkpoint relative to its run, the full path of one elsewhere; with the metric
    it was kept by."""
    is_inside = info.path.is_relative_to(run.path)
    name = info.path.relative_to(run.path) if is_inside else info.path
    return str(name) if info.metric is None else f"{name} ({metric_text(info)})"


def find_source(text: str, root: str, which: str | None = None) -> Path:
    """The checkpoint or file of weights that CHECKPOINT names; of a run, what `pick_checkpoint`
    picks."""
    path = Path(text)
    if path.name != MANIFEST and (path.is_file() or is_checkpoint(path)):
        return path
    if path.suffix in FILES_OF_WEIGHTS:
        raise ConfigurationError("no-weights-file", f"There is no file {text}.")
    return pick_checkpoint(find_folder(text, root), which).path


def find_folder(text: str, root: str) -> Path:
    """The run, the folder of checkpoints or the checkpoint that RUN names."""
    path = Path(text)
    if path.is_dir():
        try:
            list_checkpoints(path)
            return path
        except CheckpointError:  # a folder without checkpoints: of runs, perhaps
            pass
    return find_run(text, root).path


def require_config(run: Run) -> None:
    """Raise an error if a program, not a run file, started the run."""
    if (run.path / CONFIG).is_file():
        return
    named = "" if run.command is None else f" ({run.command})"
    raise ConfigurationError(
        "run-of-a-program",
        f"{run.path} was started by a program{named}, not from a run file, so this command cannot "
        "build its model and data. In Python, load its weights into your model:\n"
        f"  model.load_state_dict(loopwright.load_weights({str(run.path)!r}))",
    )
