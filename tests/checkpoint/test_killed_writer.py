"""A writing process that is killed at any moment leaves complete checkpoints or none."""

import os
import random
import time

from loopwright.checkpoint import CheckpointStore, update_name, verify_checkpoint
from tests.checkpoint.helpers import save_forever, start

KILLS = 4  # `make torture` has many more


def run_and_kill(directory, milliseconds: float, *, saves_one: bool) -> int:
    """Start a process that saves without end, kill it after so long (or after its first save);
    where it began."""
    process, ours = start(save_forever, directory)
    began_at = ours.recv()
    end = time.monotonic() + 60
    while saves_one and not any(name > update_name(began_at) for name in os.listdir(directory)):
        assert time.monotonic() < end
        time.sleep(0.005)
    process.join(milliseconds / 1000)
    process.kill()
    process.join()
    return began_at


def test_a_kill_at_any_moment_leaves_a_newest_that_verifies_and_no_litter(tmp_path):
    generator = random.Random(time.time_ns())
    last = 0
    for number in range(KILLS):
        began_at = run_and_kill(tmp_path, generator.uniform(0, 120), saves_one=number == KILLS - 1)
        assert began_at >= last, "an update that was committed was lost"
        last = began_at
        store = CheckpointStore(tmp_path, 2)
        newest = store.newest()
        if newest is None:
            continue
        assert newest.tree["models"]["default"]["weight"].unique().tolist() == [
            newest.tree["update"]
        ]
        last = newest.tree["update"]
        assert all(not verify_checkpoint(tmp_path / name) for name in os.listdir(tmp_path))
        # a kill may come before the old one is removed, and that several times in a row
        store.prune()
        assert len(os.listdir(tmp_path)) <= 2
    assert last > 0
