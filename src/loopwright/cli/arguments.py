"""Arguments that commands share: the common look of `--help`, CONFIG and KEY=VALUE, and how a run is named."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..run.reading import MANIFEST, RunView, find_runs
from .exits import EXIT_CODES

Command = Callable[[argparse.Namespace], int]
OVERRIDES = """\
change a value: model.width=32, trainer.callbacks.0.patience=3; add one: +model.depth=2; remove one: ~scheduler"""
ROOT = "runs"
RUN = "a run: its path, the beginning of its id or name, or `last` (-2 is the one before, and so on)"
MAX_LISTED = 6


def add_command(
    parsers: Any,
    common: argparse.ArgumentParser,
    name: str,
    *,
    run: Command,
    what: str,
    more: str,
    example: str,
) -> argparse.ArgumentParser:
    """Add a parser: `what` is the first sentence of its help, `more` the paragraph, `example` its arguments.

    The names in `metavar` of its arguments say how a shell completes them: RUN, CONFIG, CHECKPOINT, DIR, FILE.
    """
    first, *others = example.splitlines()
    examples = "".join(f"\n         loopwright {line}" for line in others)
    parser: argparse.ArgumentParser = parsers.add_parser(
        name,
        help=what[0].lower() + what[1:].rstrip("."),
        description=f"{what}\n{more}",
        epilog=f"example: loopwright {first}{examples}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.set_defaults(run=run)
    return parser


def add_config(parser: argparse.ArgumentParser, *, what: str = "a run file (YAML)", nargs: str | None = None) -> None:
    """Add the arguments CONFIG and KEY=VALUE."""
    parser.add_argument("config", metavar="CONFIG", help=what, nargs=nargs)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=OVERRIDES)


def take_overrides(options: argparse.Namespace, others: Sequence[str]) -> list[str]:
    """Add overrides that come after an option, which argparse does not parse; return the arguments left over.

    Of a command that takes any number of `files`, files are taken as well.
    """
    if not isinstance(getattr(options, "overrides", None), list):
        return list(others)
    if isinstance(getattr(options, "files", None), list):
        options.files = [*options.files, *(text for text in others if is_file(text))]
        others = [text for text in others if not is_file(text)]
    options.overrides = [*options.overrides, *(text for text in others if is_override(text))]
    return [text for text in others if not is_override(text)]


def is_file(text: str) -> bool:
    """Whether an argument looks like a file, rather than like an override or an option."""
    return not is_override(text) and not text.startswith("-")


def is_override(text: str) -> bool:
    """Whether an argument looks like an override, rather than like a file or an option."""
    return ("=" in text and not text.startswith("-")) or text.startswith(("~", "+"))


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the folder of runs."""
    parser.add_argument("--root", metavar="DIR", default=ROOT, help=f"where runs are looked for (default: {ROOT})")


def find_run(text: str, root: str = ROOT) -> RunView:
    """Look up a run by path, id, name or `last`; an error lists the candidates."""
    if place := _place_from_the_end(text):
        return _newest(root, place, text)
    if found := _at(Path(text)) or _at(Path(root) / text):
        return _only(found, text, root)
    runs = all_runs(root)
    exact = [run for run in runs if text in _words(run, root)]
    if found := exact or [run for run in runs if any(word.startswith(text) for word in _words(run, root))]:
        return _only(found, text, root)
    raise ConfigurationError(f"There is no run {text!r}{_hint(text, runs, root)}")


def all_runs(root: str | Path) -> list[RunView]:
    """All runs below a folder, the newest first; nothing where there is no such folder."""
    return sorted(map(RunView, find_runs(root)), key=lambda run: (_started(run), str(run.path)), reverse=True)


def short_path(run: RunView, root: str | Path) -> str:
    """The path of a run relative to the folder of runs; the full path of a run elsewhere."""
    try:
        return str(run.path.relative_to(Path(root).absolute()))
    except ValueError:
        return str(run.path)


def _at(path: Path) -> list[RunView]:
    """The run at a path, or all runs in the folder there."""
    path = path.parent if path.name == MANIFEST else path
    return all_runs(path) if path.is_dir() and path.name else []


def _only(found: list[RunView], text: str, root: str) -> RunView:
    if len(found) == 1:
        return found[0]
    raise ConfigurationError(f"{text!r} may be any of {len(found)} runs:{_listed(found, root)}\nName one of them.")


def _started(run: RunView) -> float:
    return 0.0 if run.started is None else run.started.timestamp()


def _place_from_the_end(text: str) -> int | None:
    if text == "last":
        return 1
    return int(text[1:]) if re.fullmatch(r"-[1-9]\d{0,5}", text) else None


def _newest(root: str, place: int, text: str) -> RunView:
    runs = all_runs(root)
    if len(runs) < place:
        count = f"There are {len(runs)} runs" if runs else "There is no run"
        raise ConfigurationError(f"{count} below {root}/, so none is {text!r}: name another, or another --root.")
    return runs[place - 1]


def _words(run: RunView, root: str) -> tuple[str, ...]:
    return run.id, run.name, run.path.name, short_path(run, root)


def _hint(text: str, runs: list[RunView], root: str) -> str:
    if not runs:
        what = "no run in it" if Path(root).is_dir() else "no such folder"
        return f", and {root}/ is no help ({what}). Name a run directory, or --root, the folder it is in."
    words = {word: run for run in reversed(runs) for word in _words(run, root)}
    near = difflib.get_close_matches(text, words, n=MAX_LISTED, cutoff=0.5)
    candidates = list({id(words[word]): words[word] for word in near}.values())
    if candidates:
        return f" below {root}/. Near it:{_listed(candidates, root)}"
    return f" below {root}/. The newest:{_listed(runs, root)}"


def _listed(runs: list[RunView], root: str) -> str:
    lines = [f"\n  {short_path(run, root)}  ({run.state}, id {run.id})" for run in runs[:MAX_LISTED]]
    more = len(runs) - len(lines)
    return "".join(lines) + (f"\n  and {more} more (loopwright runs lists them)" if more > 0 else "")
