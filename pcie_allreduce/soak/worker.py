"""The life of one rank process of a soak: rounds until rank 0 says that the time is over, or a rank was killed."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from pcie_allreduce.bench.backends.base import Seat
from pcie_allreduce.bench.case import Message
from pcie_allreduce.bench.worker import follow_parent, own_stream, take_seat
from pcie_allreduce.soak.plan import Asked, draw, islands_of
from pcie_allreduce.soak.player import Player


def main(rank: int, asked: Asked, gpus: int, generation: int, end: float, store: str, pipe: Connection) -> None:
    """Entry of the process. Tells "counts", "complaint" and "trouble"; last "done", or "failed" with two texts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its ranks
    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    islands = islands_of(asked.ranks)
    if islands is not None:
        os.environ["PCIE_ALLREDUCE_ISLANDS"] = islands
    try:
        with take_seat(rank, asked.ranks, gpus, store) as seat, own_stream(seat.device):
            player = Player(seat, asked.timeout, lambda told: pipe.send(Message("complaint", told)))
            number = 0
            while generation == number == 0 or _go_on(seat, end):  # a start may take all the time: one round is played
                round_ = draw(asked.seed, generation, number, asked.ranks, asked.kills)
                pipe.send(Message("trouble", round_.trouble))
                goes_on = player.play(round_)
                pipe.send(Message("counts", copy.copy(player.counts)))
                if not goes_on:
                    pipe.send(Message("done"))
                    pipe.close()
                    os._exit(0)  # a tidy exit would wait for the rank that was killed
                number += 1
        pipe.send(Message("done"))
    except BaseException as error:  # whatever it was, the parent must say it
        pipe.send(Message("failed", (f"{type(error).__name__}: {error}", traceback.format_exc())))
        os._exit(1)


def _go_on(seat: Seat, end: float) -> bool:
    """Rank 0's clock decides for all."""
    flag = torch.tensor([int(time.monotonic() < end)])
    dist.broadcast(flag, 0, group=seat.gloo)
    return bool(flag.item())
