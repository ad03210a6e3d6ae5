"""The exception family: one base to catch, attributes to act on, sentences to read; they travel between processes."""

from __future__ import annotations

import pickle
import re

import pytest
from ranks import Rank, run_ranks

from pcie_allreduce import AllReduceTimeout, CallMismatch, ClosedError, PcieAllReduceError, SetupError

FAMILY = (SetupError, AllReduceTimeout, CallMismatch, ClosedError)


def test_there_is_one_base_to_catch() -> None:
    assert issubclass(PcieAllReduceError, Exception)
    assert not issubclass(PcieAllReduceError, ValueError | TypeError)
    for kind in FAMILY:
        assert issubclass(kind, PcieAllReduceError)
        assert kind.__doc__
    for kind in FAMILY:
        assert not any(issubclass(kind, other) for other in FAMILY if other is not kind), "each means one thing"


def timed_out(me: Rank) -> AllReduceTimeout | None:
    import torch

    comm = me.communicator(max_bytes=4096, timeout=0.5, warmup_timeout=0.5)
    try:
        if me.rank != 2:
            with pytest.raises(AllReduceTimeout) as caught:
                comm.all_reduce(torch.ones(4))
            return caught.value
        return None
    finally:
        me.meet()
        comm.close()


def test_a_timeout_keeps_its_attributes_across_processes() -> None:
    for rank, error in enumerate(run_ranks(3, timed_out)):
        if rank == 2:
            continue
        assert type(error) is AllReduceTimeout
        assert (error.rank, error.missing, error.call) == (rank, (2,), 0)
        assert isinstance(error.stage, str)
        assert error.stage in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert again.missing == error.missing
        sentence = str(error)
        assert f"rank {rank}" in sentence, sentence
        assert "rank 2" in sentence, sentence
        assert re.search(r"waited \d\.\d s", sentence), sentence
