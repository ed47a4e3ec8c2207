"""A writing process that is killed at any moment leaves complete checkpoints or none."""

import os
import random
import time

from checkpoint_helpers import processes, save_forever

from loopwright.checkpoint import CheckpointStore, verify_checkpoint

KILLS = 4  # `make torture` has many more


def run_and_kill(directory, milliseconds: float) -> int:
    """Start a process that saves without end, kill it after so long; the update it began at."""
    ours, theirs = processes.Pipe()
    process = processes.Process(target=save_forever, args=(str(directory), theirs))
    process.start()
    began_at = ours.recv()
    process.join(milliseconds / 1000)
    process.kill()
    process.join()
    return began_at


def test_a_kill_at_any_moment_leaves_a_newest_that_verifies_and_no_litter(tmp_path):
    generator = random.Random(time.time_ns())
    last = 0
    for _ in range(KILLS):
        began_at = run_and_kill(tmp_path, generator.uniform(0, 120))
        assert began_at >= last, "an update that was committed was lost"
        last = began_at
        store = CheckpointStore(tmp_path, 2)
        newest = store.newest()
        if newest is None:
            continue
        assert newest.tree["models"]["default"]["weight"].unique().tolist() == [newest.tree["update"]]
        last = newest.tree["update"]
        assert all(not verify_checkpoint(tmp_path / name) for name in os.listdir(tmp_path))
        store.prune()  # a kill may come before the old one is removed, and that several times in a row
        assert len(os.listdir(tmp_path)) <= 2
    assert last > 0
