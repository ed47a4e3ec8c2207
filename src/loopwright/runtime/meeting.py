"""How processes meet: a store they share, and in it a corner of their own.

torchrun keeps one store over all its restarts, so what an earlier attempt left there (addresses of processes that are
gone) must not be taken for this one's. The number of the restart does not tell them apart: it stays the same when
processes are added or removed. So the processes agree on a name that nobody used before.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store  # where torch's types have them
from torch.distributed.rendezvous import rendezvous

from .environment import Launch
from .failure import CommunicationError

_PAUSE = 0.01


def meet(launch: Launch, timeout: float) -> Store:
    """The store of this attempt, once all processes are there."""
    where = f"{launch.master_addr}:{launch.master_port}"
    url = "env://" if launch.source == "torchrun" else f"tcp://{where}"
    try:
        found = rendezvous(url, rank=launch.rank, world_size=launch.world, timeout=timedelta(seconds=timeout))
        store: Store = next(found)[0]
        end = time.monotonic() + timeout
        name = _invite(store, launch, end) if launch.rank == 0 else _accept(store, launch, end)
    except RuntimeError as error:
        raise CommunicationError(
            f"Rank {launch.rank} of {launch.world} did not meet the others at {where} within {timeout:g} s: are all "
            f"{launch.world} running, and can this host reach {launch.master_addr}? ({error})"
        ) from error
    return PrefixStore(name, store)


def _invite(store: Store, launch: Launch, end: float) -> str:
    """Rank 0 chooses the name, and says who has come under it."""
    name = f"loopwright-{uuid.uuid4().hex}"
    store.set("loopwright-name", name)
    missing = set(range(1, launch.world))
    while missing:
        missing = {rank for rank in missing if not store.check([f"{name}/come{rank}"])}
        if missing and time.monotonic() > end:
            raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(_PAUSE if missing else 0.0)
    come = [store.get(f"{name}/come{rank}").decode() for rank in range(1, launch.world)]
    store.set(f"{name}/all", " ".join(come))
    return name


def _accept(store: Store, launch: Launch, end: float) -> str:
    """The others come under the name they find, and again under the next one, if that was left from before."""
    own, name = f"{uuid.uuid4().hex}-{os.getpid()}", ""
    while True:
        found = store.get("loopwright-name").decode() if store.check(["loopwright-name"]) else ""
        if found and found != name:
            name = found
            store.set(f"{name}/come{launch.rank}", own)
        if name and store.check([f"{name}/all"]) and own in store.get(f"{name}/all").decode().split():
            return name
        if time.monotonic() > end:
            raise RuntimeError("rank 0 did not come" if not name else "not all came")
        time.sleep(_PAUSE)
