"""The commands that look at runs and checkpoints, and those about this machine and shell."""

from __future__ import annotations

import argparse

from .commands import (
    CHECKPOINT,
    FOLDER,
    LAST,
    ROOT,
    RUN,
    SHELLS,
    WEIGHTS,
    add_checkpoint,
    add_flag,
    add_option,
    add_root,
    add_run,
    command,
)


@command(
    "ui",
    "ui.ui_command",
    "Show runs in the browser while they train.",
    more="""\
The page has a table of runs, their curves while they train, and everything that was recorded. It only reads files, so
it never disturbs a run. It needs no account, and nothing in your program except `run_dir`.

Only this machine can open the page. With --host, other machines can open it too, with the token in the printed address.
To open it through ssh instead, run this on your own machine and open the printed address:

  ssh -L 6060:localhost:6060 MACHINE""",
    example="""\
ui
ui runs/digits --port 6070
ui --host 0.0.0.0""",
)
def _ui(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root",
        metavar="DIR",
        nargs="?",
        default=ROOT,
        help=f"the folder of runs, or one run (default: {ROOT})",
    )
    add_option(
        parser,
        "--port",
        "N",
        "the port (default: 6060, or the next free one)",
        type=int,
        default=6060,
    )
    add_option(
        parser,
        "--host",
        "ADDRESS",
        "the address to listen on (default: 127.0.0.1)",
        default="127.0.0.1",
    )
    add_flag(parser, "--open", "open the page in a browser")


@command(
    "watch",
    "watch.watch_command",
    "Watch a run while it trains.",
    more="""\
Shows the state, the progress, the time left and the curves of the metrics; a metric and its evaluation share a chart.
It only reads files, so you can start and quit it at any time, also for a run that has ended or crashed. A column that
covers several steps shows the range of their values, so no spike is lost. q, Escape or Ctrl-C quits. Without a
terminal, one picture is printed.""",
    example="""\
watch
watch digits --metric loss --metric eval_accuracy --log
watch runs/first --once""",
)
def _watch(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_option(
        parser,
        "--metric",
        "NAME",
        "draw this metric; may be repeated (default: what fits)",
        action="append",
    )
    add_flag(parser, "--log", "draw on a logarithmic scale")
    add_flag(parser, "--once", "print one picture and exit")
    add_flag(parser, "--json", "print state, progress and last values as JSON and exit")
    add_option(
        parser,
        "--interval",
        "SECONDS",
        "time between two pictures (default: 1)",
        type=float,
        default=1.0,
    )


@command(
    "report",
    "report.report_command",
    "Write runs to one HTML file that needs no server.",
    more="""\
The file is the page of `loopwright ui` with the runs in it: table, curves, images, config and log. It opens in any
browser without a server or network. Curves with very many points are thinned (mean, minimum and maximum are kept), and
the page says so. It contains config, log and details of the machine: look at it before you send it.""",
    example="""\
report
report runs/digits runs/digits-2 -o digits.html
report runs/digits/sweep --points 500""",
)
def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="RUN",
        nargs="*",
        default=[LAST],
        help=f"{RUN}; or a folder of runs (default: last)",
    )
    add_root(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="report.html",
        help="the file to write (default: report.html)",
    )
    add_option(
        parser,
        "--points",
        "N",
        "the most points per curve (default: depends on the size)",
        type=int,
    )


@command(
    "runs",
    "runs.runs_command",
    "List runs in a table.",
    more="""\
The folder is searched with all folders in it. The states of a run:

  running      its process is alive
  crashed      its process is gone without recording how it ended
  finished     it reached its limit
  stopped      a callback or the program ended it early
  interrupted  a signal ended it, after it had saved
  failed       it ended with an error
  unreadable   its run.json is damaged

The metric shown is the best value of all epochs. The run records whether smaller or larger is better, or the name of
the metric says so; --best overrides it. If neither is known, the last value is shown.""",
    example="""\
runs
runs --state running,crashed --sort progress
runs --name 'digits*' --metric eval_accuracy --where 'eval_accuracy>0.97' --sort metric""",
)
def _runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root",
        metavar="DIR",
        nargs="?",
        default=ROOT,
        help=f"the folder to look for runs in (default: {ROOT})",
    )
    choose = parser.add_argument_group("filters")
    add_option(choose, "--state", "STATE,...", "only runs in these states: --state failed,crashed")
    add_option(
        choose, "--name", "TEXT", "only runs whose name or path contains this; * and ? match"
    )
    add_option(
        choose,
        "--tag",
        "TAG",
        "only runs with this tag; may be repeated",
        action="append",
        default=[],
    )
    add_option(
        choose,
        "--where",
        "CONDITION",
        "only runs whose best value satisfies this: 'eval_loss<0.5'; may be repeated",
        action="append",
        default=[],
    )
    add_option(choose, "--limit", "N", "only the first N runs", type=int)
    add_option(
        parser, "--metric", "NAME", "the metric to show (default: the main metric of each run)"
    )
    parser.add_argument(
        "--best",
        choices=("min", "max"),
        help="whether smaller or larger values of the metric are better",
    )
    parser.add_argument(
        "--sort",
        choices=("age", "name", "state", "progress", "metric", "time"),
        default="age",
        help="the order of the table (default: age, the newest first)",
    )
    add_flag(parser, "--reverse", "reverse the order")
    add_flag(parser, "--json", "print JSON")


@command(
    "show",
    "show.show_command",
    "Show what a run did, its metrics and its checkpoints.",
    more="""\
Prints what ran, on which machine, from which code, how far it got, its metrics and its checkpoints.
Exit code 1: the run failed or crashed, or part of it cannot be read.""",
    example="""\
show
show runs/digits --config
show digits --json""",
)
def _show(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_flag(parser, "--config", "print its config, which you can train from again")
    add_flag(parser, "--all", "print everything that run.json holds, at full length")
    add_flag(parser, "--json", "print everything as JSON, with run.json and the config")


@command(
    "diff",
    "diff.diff_command",
    "Compare two runs: the last two, or those named.",
    more="""\
Without arguments the last two runs are compared; with one RUN, that run and the last one. First come config, code,
packages, seed, hardware and data, then the metrics of every step and epoch, bit for bit, up to the first difference.
Names, tags and folders are not compared, and neither are metrics of time and memory.
Exit code 1: the runs differ.""",
    example="""\
diff
diff runs/first runs/second
diff last~1 last --ignore 'lr*'""",
)
def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "first", metavar="RUN", nargs="?", help=f"{RUN} (default: the last but one)"
    )
    parser.add_argument(
        "second",
        metavar="RUN",
        nargs="?",
        default=LAST,
        help="the run to compare it with (default: last)",
    )
    add_root(parser)
    add_option(
        parser,
        "--ignore",
        "NAME",
        "skip this metric; * and ? match, may be repeated",
        action="append",
        default=[],
    )
    add_flag(parser, "--strict", "also compare metrics of time and memory")
    add_flag(parser, "--all", "list every difference, not only the first 20")
    add_flag(parser, "--json", "print JSON")


@command(
    "plot",
    "plot.plot_command",
    "Draw the loss or other metrics of runs.",
    more="""\
Without --metric the training loss and the evaluation loss share one picture. Each --metric has its own panel, with
a curve for every run. Curves are drawn over epochs once a run has two of them, before that over steps or updates; --by
chooses. An existing picture is replaced.""",
    example="""\
plot
plot --text
plot runs/first runs/second --metric eval_loss --by updates -o curves.svg""",
)
def _plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="RUN", nargs="*", default=[LAST], help=f"{RUN} (default: last)"
    )
    add_option(
        parser,
        "--metric",
        "NAME",
        "draw this metric; may be repeated (default: the loss)",
        action="append",
    )
    add_root(parser)
    parser.add_argument("--by", choices=("epochs", "steps", "updates"), help="the horizontal axis")
    add_option(parser, "--smooth", "N", "average over the last N values", type=int, default=1)
    add_flag(parser, "--log", "draw on a logarithmic scale")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a .png, .svg, .pdf file (default: the metric's name and .png)",
    )
    add_flag(where, "--text", "draw in the terminal instead")
    add_flag(where, "--json", "print the curves as JSON instead")


@command(
    "query",
    "query.query_command",
    "Query the metrics of a run with SQL.",
    more="""\
Without SQL the tables are listed with their columns: metrics, epochs, events, media, log_lines, clock and others.
NaN is NULL. Queries only read, also while the run is training.""",
    example="""\
query
query "SELECT name, min(value) FROM epochs GROUP BY name"
query runs/first "SELECT * FROM epochs WHERE name = 'loss'" --csv""",
)
def _query(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "run_name")
    parser.add_argument(
        "sql", metavar="SQL", nargs="?", help="one SELECT statement (default: list the tables)"
    )
    form = parser.add_mutually_exclusive_group()
    add_flag(form, "--json", "print a JSON list with one object per row")
    add_flag(form, "--csv", "print CSV, with the column names first")


@command(
    "export",
    "export.export_command",
    "Export the model of a run as safetensors, torch file or ONNX.",
    more="""\
Checkpoints are verified before their weights are written. ONNX needs the model as well, so the run must have been
started from a run file: the model is built from its config, and the outputs of the ONNX file are compared with those of
torch on samples of the training data.
Exit code 1: the ONNX file was written, but its outputs differ from those of torch.""",
    example="""\
export
export runs/digits --format onnx --checkpoint newest --output digits.onnx""",
)
def _export(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--format",
        choices=("safetensors", "torch", "onnx"),
        default="safetensors",
        help="the format of the file (default: safetensors)",
    )
    add_checkpoint(parser)
    add_option(parser, "--model", "NAME", "the model to export, if the run trains several")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write (default: named after the run)"
    )
    add_flag(parser, "--force", "replace FILE if it exists")
    add_option(parser, "--opset", "N", "the ONNX opset version (default: torch's)", type=int)


@command(
    "checkpoint",
    "",
    "List, verify, show, compare and export checkpoints.",
    more="""\
A run saves two kinds of checkpoints. Resume points hold the complete state of training. Kept models hold the weights of
the best epochs. Nothing in a checkpoint is ever executed.""",
    example=(
        "checkpoint list\ncheckpoint verify runs/digits\ncheckpoint export last digits.safetensors"
    ),
)
def _checkpoint(parser: argparse.ArgumentParser) -> None:
    """Its commands follow."""


@command(
    "checkpoint list",
    "checkpoint.list_command",
    "List the resume points and kept models of a run.",
    more=(
        "The table has epoch, step, update and metric of each, its age, its size and whether "
        "it is intact."
    ),
    example="checkpoint list\ncheckpoint list runs/digits --verify",
)
def _checkpoint_list(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "run_directory", what=FOLDER)
    add_flag(parser, "--verify", "compare hashes too, not only sizes")
    add_flag(parser, "--json", "print JSON")


@command(
    "checkpoint verify",
    "checkpoint.verify_command",
    "Compare every file of every checkpoint with its hash.",
    more="Exit code 1: a checkpoint is damaged, or there is none.",
    example="checkpoint verify\ncheckpoint verify runs/digits",
)
def _checkpoint_verify(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "run_directory", what=FOLDER)
    add_flag(parser, "--json", "print JSON")


@command(
    "checkpoint show",
    "checkpoint.show_command",
    "Show what a checkpoint contains.",
    more=(
        "Prints its metadata, files, models and, with --tensors, tensors.\nExit code 1: a "
        "file is missing or damaged."
    ),
    example="checkpoint show\ncheckpoint show digits --checkpoint newest --tensors",
)
def _checkpoint_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="CHECKPOINT",
        nargs="?",
        default=LAST,
        help=f"{CHECKPOINT} (default: last)",
    )
    add_root(parser)
    add_checkpoint(parser)
    add_flag(parser, "--tensors", "list every tensor with dtype, shape and size")
    add_flag(parser, "--json", "print JSON")


@command(
    "checkpoint diff",
    "checkpoint.diff_command",
    "Compare two checkpoints bit for bit.",
    more=(
        "Without arguments, the checkpoints of the last two runs are compared: first the "
        "metadata, then every tensor and value. The time that training took is not compared. Use "
        "--checkpoint newest to compare the complete state of training, not only weights.\n"
        "Exit code 1: they differ."
    ),
    example="checkpoint diff\ncheckpoint diff runs/first runs/second --checkpoint newest",
)
def _checkpoint_diff(parser: argparse.ArgumentParser) -> None:
    for name, default in (("first", "last~1"), ("second", LAST)):
        what = f"{CHECKPOINT}; or a {WEIGHTS} (default: {default})"
        parser.add_argument(name, metavar=name.upper(), nargs="?", default=default, help=what)
    add_root(parser)
    add_checkpoint(parser)
    add_option(parser, "--model", "NAME", "compare only the weights of this model")
    add_flag(parser, "--json", "print JSON")


@command(
    "checkpoint export",
    "checkpoint.export_command",
    "Write the weights of a model to a separate file.",
    more="The file is a torch file if OUT ends in .pt, .pth or .bin, and safetensors otherwise.",
    example=(
        "checkpoint export last digits.safetensors\ncheckpoint export weights.pt "
        "weights.safetensors"
    ),
)
def _checkpoint_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="CHECKPOINT", help=f"{CHECKPOINT}; or a {WEIGHTS} to convert"
    )
    parser.add_argument("out", metavar="OUT", help="the file to write")
    add_root(parser)
    add_checkpoint(parser)
    add_option(parser, "--model", "NAME", "the model to export, if the checkpoint has several")
    add_flag(parser, "--force", "replace OUT if it exists")


@command(
    "doctor",
    "doctor.doctor_command",
    "Measure what this machine can do, and give advice.",
    more="""\
Prints versions, devices, the speed of each precision, whether torch.compile works, the limits for data-loading workers,
the speed of the disk and what a checkpoint costs on it, distributed backends and optional packages; then advice. This
takes up to a minute, most of it for compiling.
Exit code 1: the folder is not writable.""",
    example="""\
doctor
doctor --quick --folder /scratch/runs""",
)
def _doctor(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--quick", "skip torch.compile and measure less")
    add_option(
        parser, "--folder", "DIR", "the folder for runs (default: the current one)", default="."
    )
    add_flag(parser, "--json", "print JSON")


@command(
    "completion",
    "completion.completion_command",
    "Print a script for shell completion.",
    more="""\
The script completes commands, options and their choices, runs below runs/, YAML files and paths. Write it to:

  bash  ~/.local/share/bash-completion/completions/loopwright
  zsh   ~/.zfunc/_loopwright, with fpath+=~/.zfunc before compinit in .zshrc
  fish  ~/.config/fish/completions/loopwright.fish
  tcsh  ~/.loopwright.tcsh, with source ~/.loopwright.tcsh in .tcshrc

For the current zsh only: eval "$(loopwright completion zsh)".""",
    example="""\
completion bash
completion bash > loopwright.bash && source loopwright.bash""",
)
def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


COMMANDS = (
    _ui,
    _watch,
    _report,
    _runs,
    _show,
    _diff,
    _plot,
    _query,
    _export,
    _checkpoint,
    _checkpoint_list,
    _checkpoint_verify,
    _checkpoint_show,
    _checkpoint_diff,
    _checkpoint_export,
    _doctor,
    _completion,
)
