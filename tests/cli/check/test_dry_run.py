"""`loopwright check PROGRAM`: a dry run on one process finds what is wrong with a program for
several."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn

from loopwright.cli import main
from loopwright.runtime import dry_run
from tests.distributed.ranks import run_ranks

START = """
import sys
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset
from loopwright import Callback, Trainer
from loopwright.runtime.launch import launch
from loopwright.runtime.dtensor import Mesh

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
data = TensorDataset(torch.randn(40, 8), torch.randint(3, (40,)))
loss_fn = nn.functional.cross_entropy

def build(**options):
    return Trainer(model, torch.optim.Adam(model.parameters()), loss_fn, **options)
"""


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Check a program made of the common start and a few lines; the exit code and what was
    printed."""

    def run(lines: str, *options: str, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        program = tmp_path / "program.py"
        program.write_text(START + textwrap.dedent(lines))
        code = main(["check", *options, str(program), *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def row(printed: str, first: str) -> list[str]:
    """The cells of the line that begins with a word."""
    line = next(line for line in printed.splitlines() if line.split() and line.split()[0] == first)
    return [cell for cell in line.split("  ") if cell.strip()]


def cells(printed: str, first: str) -> list[str]:
    return [cell.strip() for cell in row(printed, first)]


def test_with_ddp_every_process_holds_the_full_parameters(check):
    code, printed = check("build().train(data, batch_size=16)", "--processes", "4")
    assert code == 0
    assert printed.startswith("4 processes, fp32: Mesh(replicate=4, shard=1, tensor=1)")
    assert cells(printed, "0.weight") == [
        "0.weight",
        "16 x 8",
        "float32",
        "whole",
        "16 x 8",
        "16 x 8",
        "16 x 8",
    ]


def test_with_fsdp_the_parts_are_those_that_torch_gives_each_rank(check):
    _, printed = check(
        "build().train(data, batch_size=16)", "--processes", "4", "--runtime", "fsdp"
    )
    assert cells(printed, "0.weight")[3:] == ["dim 0 over shard", "4 x 8", "4 x 8", "4 x 8"]
    assert cells(printed, "2.weight")[3:] == ["dim 0 over shard", "1 x 16", "1 x 16", "-"]


def test_bytes_are_those_of_an_update_with_the_optimizer_itself(check):
    _, printed = check("build().train(data, batch_size=16)", "--processes", "4")
    values = 8 * 16 + 16 + 16 * 3 + 3
    assert values * 4 == 780
    # two moments and 4 counters
    assert cells(printed, "0-3")[1:] == ["780 B", "0 B", "780 B", "1.58 kB", "3.14 kB"]


def test_batch_is_divided_among_the_processes(check):
    _, printed = check("build(accumulate=2).train(data, batch_size=16)", "--processes", "3")
    assert "A batch of 16 samples: 5 or 6 samples for each of 3 data-parallel processes" in printed
    assert "An epoch: 3 steps, 2 updates" in printed
    assert "note: 16 samples do not divide by 3" in printed


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_layers_cut_by_a_plan_are_shown_with_their_placement(check):
    plan = "{'0': ColwiseParallel(), '2': RowwiseParallel()}"
    program = f"build(runtime=Mesh(shard=2, tensor=2, plan={plan})).train(data, batch_size=16)"
    code, printed = check(program, "--processes", "4")
    assert code == 0
    assert cells(printed, "0.weight")[3] == "dim 0 over shard, dim 0 over tensor"
    assert cells(printed, "2.weight")[3:5] == ["dim 0 over shard, dim 1 over tensor", "2 x 8"]
    assert "2 processes that hold parts of the same layers see the same samples" in printed


def test_a_mesh_on_the_command_line_says_how_many_processes_there_are(check):
    code, printed = check("build().train(data, batch_size=16)", "--mesh", "replicate=2,shard=3")
    assert code == 0
    assert printed.startswith("6 processes, fp32: Mesh(replicate=2, shard=3, tensor=1)")


def test_dry_run_of_launch_has_as_many_processes_as_it_asks_for(check):
    program = """
    def work(size):
        build().train(data, batch_size=size)

    launch(work, 30, processes=5)
    """
    code, printed = check(program)
    assert (code, printed.splitlines()[0].split(",")[0]) == (0, "5 processes")
    assert "A batch of 30 samples: 6 samples" in printed


def test_program_gets_its_arguments_and_ends_in_its_first_epoch(check):
    program = """
    print("got", sys.argv[1:])
    build().train(data, 3, batch_size=16)
    print("trained")
    """
    _, printed = check(program, arguments=("--epochs", "3"))
    assert "got ['--epochs', '3']" in printed
    assert "trained" not in printed


def test_an_option_of_check_after_the_program_is_noted(check):
    _, printed = check("build().train(data)", arguments=("--processes=4",))
    assert "note: --processes=4 was passed to the program: options of `check` come" in printed


def test_nothing_is_written_and_no_callback_is_called(check, tmp_path):
    program = f"""
    class Loud(Callback):
        def on_train_start(self, trainer):
            print("loud")

    build(run_dir={str(tmp_path / "run")!r}, callbacks=[Loud()]).train(data, batch_size=16)
    """
    code, printed = check(program)
    assert code == 0
    assert "loud" not in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py"]


def test_the_collectives_of_an_update_stand_beside_their_estimate(check):
    _, printed = check(
        "build(clip_norm=1.0).train(data, batch_size=10, eval_data=data)", "--runtime", "fsdp"
    )
    assert "accumulation" not in printed
    counted = "1 all-gather of 848 B, 3 all-reduces of 44 B, 1 reduce-scatter of 848 B; 892 B sent"
    assert f"Counted in an update, on each process: {counted}\n" in printed
    assert "Estimated by loopwright.scaling: the same collectives, to the byte\n" in printed


def test_a_collective_that_the_program_adds_is_seen_in_the_count(check):
    program = """
    class Summing(Trainer):
        def on_update_end(self):
            torch.distributed.all_reduce(torch.ones(25))

    Summing(model, torch.optim.Adam(model.parameters()), loss_fn).train(data, batch_size=10)
    """
    _, printed = check(program)
    assert "Counted in an update, on each process: 2 all-reduces of 908 B; 908 B sent\n" in printed


def test_json_has_the_same_facts_as_the_text(check):
    code, printed = check(
        "print('hello')\nbuild().train(data, batch_size=6)",
        "--json",
        "--processes",
        "4",
        "--runtime",
        "fsdp",
    )
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert (code, found["ok"], found["mistakes"], found["precision"]) == (0, True, [], "fp32")
    assert found["mesh"] == {"replicate": 1, "shard": 4, "tensor": 1}
    assert found["batch"] == {"total": 6, "sizes": [1, 2, 1, 2], "how": "cut", "num_batches": 7}
    assert found["parameters"][2]["local_shapes"] == [[1, 16], [1, 16], [1, 16], [0, 16]]
    assert [memory["parameters"] for memory in found["memory"]] == [212, 212, 212, 144]
    assert "6 samples do not divide by 4" in found["notes"][0]["message"]


MISTAKES = {
    "a batch smaller than the processes": (
        "build().train(data, batch_size=3)",
        "A batch has 3 samples for 4 data-parallel processes",
    ),
    "a mesh of another size": (
        "build(runtime=Mesh(shard=3))",
        "is for 3 processes, but there are 4",
    ),
    "a plan for layers that are not there": (
        "build(runtime=Mesh(shard=2, tensor=2, plan={'up': ColwiseParallel()})).train(data)",
        "names up, which the model does not have; it has: 0, 1, 2",
    ),
    "fp16 with shards": (
        "build(runtime='fsdp', precision='fp16')",
        "'fp16' does not work with a sharded model",
    ),
    "an optimizer of another model": (
        "Trainer(model, torch.optim.Adam(nn.Linear(2, 2).parameters()), loss_fn).train(data)",
        "holds 2 of 2 parameters that belong to none of the models",
    ),
    "a single device": (
        "build(runtime='cpu').train(data)",
        "each process would train its own model",
    ),
    "a metric that is not measured": (
        "from loopwright.callbacks import EarlyStopping\n"
        "build(callbacks=[EarlyStopping('eval_acuracy')]).train(data, eval_data=data)",
        "EarlyStopping watches 'eval_acuracy'",
    ),
    "data that a run cannot be resumed on": (
        "build(run_dir='nowhere').train(iter([(torch.randn(4, 8), torch.randint(3, (4,)))] * 8))",
        "resum",
    ),
    "fewer ready batches than processes": (
        "build().train([(torch.randn(4, 8), torch.randint(3, (4,)))] * 3)",
        "there are fewer than 4",
    ),
}


@pytest.mark.parametrize(("lines", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_mistake_is_named_and_the_exit_code_is_1(check, lines, message):
    code, printed = check(lines, "--processes", "4")
    mistakes = [line for line in printed.splitlines() if line.startswith("mistake: ")]
    assert code == 1
    assert len(mistakes) == 1
    assert message in mistakes[0]


def test_an_error_of_the_program_is_shown_with_its_traceback_after_what_is_known(check):
    code, printed = check(
        "loss_fn = nn.functional.mse_loss\nbuild().train(data, batch_size=16)", "--processes", "4"
    )
    assert code == 1
    assert "Traceback" in printed
    assert "program.py" in printed
    assert cells(printed, "0-3")[1] == "780 B"
    assert "Not counted: gradients, optimizer state, activations." in printed


def test_the_notes_of_an_error_are_printed_with_it(check):
    _, printed = check(
        "from loopwright import Callback, ConfigurationError\n"
        "class Own(Callback):\n"
        "    def adapt_stream(self, stream, *, is_training):\n"
        "        error = ConfigurationError('own', 'refused')\n"
        "        error.add_note('because of this')\n"
        "        raise error\n"
        "build(callbacks=[Own()]).train(data)",
        *("--processes", "4"),
    )
    assert "mistake: refused [own]\nbecause of this" in printed


NOT_DONE = {
    "no training": ("print('hello')", (), "ended without calling `train`"),
    "left early": ("sys.exit(3)", (), "exited with code 3 before it trained"),
    "one process": ("build().train(data)", ("--processes", "1"), "a dry run needs 2 or more"),
    "an unknown axis": (
        "build().train(data)",
        ("--mesh", "pipe=2"),
        "'pipe=2' is not one of replicate=N",
    ),
    "an axis that stands twice": (
        "build().train(data)",
        ("--mesh", "shard=2,shard=4"),
        "'shard=4' is not one of replicate=N, shard=N, tensor=N, each at most once",
    ),
}


@pytest.mark.parametrize(("lines", "options", "message"), NOT_DONE.values(), ids=list(NOT_DONE))
def test_what_cannot_be_checked_has_exit_code_2_and_a_reason(check, lines, options, message):
    code, printed = check(lines, *options)
    assert code == 2
    assert "loopwright:" in printed
    assert message in printed


def test_afterwards_everything_is_as_it_was(check):
    environment, hook, path = dict(os.environ), sys.excepthook, list(sys.path)
    check("build(runtime='fsdp').train(data)", "--processes", "4")
    assert (dict(os.environ), sys.excepthook, sys.path) == (environment, hook, path)
    assert dry_run.current is None
    assert not dist.is_initialized()


def hold(rank: int) -> list[int]:
    """Shard the model of the dry run; the first row that this process holds of each parameter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from loopwright.checkpoint.sharded import box_of

    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    return [box_of(param).offsets[0] for param in model.parameters()]


def test_real_processes_forked_after_a_dry_run_have_their_own_ranks(check) -> None:
    code, _ = check(
        'build(runtime="fsdp").train(data, num_epochs=1, batch_size=8)', "--processes", "4"
    )
    assert code == 0
    assert run_ranks(hold, 4) == [[4 * rank, 4 * rank, rank, rank] for rank in range(4)]
