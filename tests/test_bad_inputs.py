"""Bad inputs, each with what a user is told. docs/errors.md shows the same table; `PCIE_ALLREDUCE_WRITE_PAGES=1 pytest
tests/test_bad_inputs.py` writes it there."""

from __future__ import annotations

import io
import os
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_ranks

from pcie_allreduce.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
BEGIN, END = "<!-- bad inputs: begin -->\n", "<!-- bad inputs: end -->\n"

OPTIONS: dict[str, dict[str, Any]] = {
    "max_bytes=0": {"max_bytes": 0},
    "max_bytes=2 << 30": {"max_bytes": 2 << 30},
    'max_bytes="many"': {"max_bytes": "many"},
    "timeout=0.0": {"timeout": 0.0},
    "timeout=nan": {"timeout": float("nan")},
    "timeout=60.0, warmup_timeout=30.0": {"timeout": 60.0, "warmup_timeout": 30.0},
    "warmup_timeout=1e6": {"warmup_timeout": 1e6},
    'algorithm="ring"': {"algorithm": "ring"},
    'transport="pigeon"': {"transport": "pigeon"},
    'transport="peer", device="cpu"': {"transport": "peer"},
    'device="meta"': {"device": "meta"},
    "group=GroupMember.NON_GROUP_MEMBER": {"group": dist.GroupMember.NON_GROUP_MEMBER},
}
ISLANDS = {"PCIE_ALLREDUCE_ISLANDS=0": "0", "PCIE_ALLREDUCE_ISLANDS=0|0": "0|0", "PCIE_ALLREDUCE_ISLANDS=a|b": "a|b"}
SMALL = torch.ones(4, 4)
CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce([1.0, 2.0])": lambda comm: comm.all_reduce([1.0, 2.0]),
    "all_reduce(None)": lambda comm: comm.all_reduce(None),
    "x on another device": lambda comm: comm.all_reduce(torch.ones(4, device="meta")),
    "x of float64": lambda comm: comm.all_reduce(SMALL.double()),
    "x of int32": lambda comm: comm.all_reduce(SMALL.int()),
    "x of bool": lambda comm: comm.all_reduce(SMALL.bool()),
    "x of complex64": lambda comm: comm.all_reduce(SMALL.to(torch.complex64)),
    "x transposed": lambda comm: comm.all_reduce(torch.ones(2, 3).t()),
    "x with gaps": lambda comm: comm.all_reduce(SMALL[:, :2]),
    "x larger than max_bytes": lambda comm: comm.all_reduce(torch.ones(1025)),
    "x that requires grad": lambda comm: comm.all_reduce(torch.ones(4, requires_grad=True)),
    "out=[0.0]": lambda comm: comm.all_reduce(SMALL, out=[0.0]),
    "out of another shape": lambda comm: comm.all_reduce(SMALL, out=torch.ones(16)),
    "out of another dtype": lambda comm: comm.all_reduce(SMALL, out=SMALL.half()),
    "out on another device": lambda comm: comm.all_reduce(SMALL, out=torch.ones(4, 4, device="meta")),
    "out with gaps": lambda comm: comm.all_reduce(torch.ones(4, 2), out=torch.ones(4, 4)[:, :2]),
    "out that overlaps x": lambda comm: _overlapping(comm, torch.ones(20)),
    "reduce_scatter of 6 rows": lambda comm: comm.reduce_scatter(torch.ones(6, 4)),
    "reduce_scatter, out as x": lambda comm: comm.reduce_scatter(SMALL, out=torch.ones(4, 4)),
    "all_gather of a scalar": lambda comm: comm.all_gather(torch.tensor(1.0)),
    "all_gather beyond max_bytes": lambda comm: comm.all_gather(torch.ones(300)),
}
CLOSED: dict[str, Callable[[Any], Any]] = {
    "all_reduce after close()": lambda comm: comm.all_reduce(SMALL),
    "check() after close()": lambda comm: comm.check(),
    "stats() after close()": lambda comm: comm.stats(),
    "watch() after close()": lambda comm: comm.watch(),
    "capture() after close()": lambda comm: comm.capture().__enter__(),
}
COMMANDS = (
    "soak --ranks 9 --device cpu",
    "soak --seconds many",
    "bench --ranks 1 --device cpu",
    "bench --sizes 3 --device cpu",
    "bench --dtype fp8 --device cpu",
    "bench --algorithm ring --device cpu",
    "bench --mode graph --device cpu",
    "bench --sizes 2147483648 --device cpu",
    "bench --algorithm island --ranks 2 --device cpu",
    "bench --input nowhere.npz --device cpu",
    "soak --seconds 0 --device cpu",
    "soak --timeout -1 --device cpu",
    "soak --timeout 1e9 --device cpu",
    "soak --json nowhere/x.json --device cpu",
    "bench --plot x.bmp --device cpu",
    "bench --nccl-sweep --device cpu",
    "verify-cycle --rows 0 --device cpu",
    "verify-cycle --layers 0 --device cpu",
    "verify-cycle --acceptance 0.5 --device cpu",
    "model --world 9",
    "memory --before 94.04",
    "memory --before 94.04 --after 21.78 --mem-fraction-static 55",
    "memory --samples 0",
    "memory --before 94.04 --after 21.78 --mem-fraction-static 0.9 --chunk 0",
    "memory --total 0 --weights 0 --gpu-memory-utilization 0.9",
    "memory --before 94.04 --after 21.78 --mem-fraction-static 0.9 --tp 0",
    "memory --before 94.04 --after 21.78 --mem-fraction-static 0.9 --nccl-channels 0",
)


def _overlapping(comm: Any, both: torch.Tensor) -> Any:
    return comm.all_reduce(both[:16], out=both[4:])


def told_by(work: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The error of `work`, as a row of the table shows it; objects have addresses, which tests cannot know."""
    try:
        work(*args, **options)
    except Exception as error:
        return re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")
    return "nothing"


def bad_inputs(me: Rank) -> list[tuple[str, str]]:
    told = [(name, told_by(me.communicator, **options)) for name, options in OPTIONS.items()]
    for name, islands in ISLANDS.items():
        os.environ["PCIE_ALLREDUCE_ISLANDS"] = islands
        told.append((name, told_by(me.communicator, algorithm="island")))
    del os.environ["PCIE_ALLREDUCE_ISLANDS"]
    comm = me.communicator(max_bytes=4096)
    told += [(name, told_by(call, comm)) for name, call in CALLS.items()]
    assert comm.all_reduce(SMALL)[0, 0].item() == me.world, "nothing was sent by any of them"
    comm.close()
    return told + [(name, told_by(call, comm)) for name, call in CLOSED.items()]


def of_command(words: str) -> tuple[str, str]:
    """In this process: a new one takes seconds to import torch."""
    said = io.StringIO()
    with redirect_stderr(said):
        try:
            status = main(words.split())
        except SystemExit as ended:  # argparse's way
            status = ended.code
    assert status == 2, said.getvalue()
    return f"pcie-allreduce {words}", said.getvalue().strip().splitlines()[-1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str]]]:
    said = run_ranks(4, bad_inputs, timeout=200)
    assert said == said[:1] * 4, "all ranks say the same"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("commands"))
        yield said[0] + [of_command(words) for words in COMMANDS]


def test_every_bad_input_is_refused_in_a_sentence(told: list[tuple[str, str]]) -> None:
    assert len(told) >= 30
    for name, sentence in told:
        assert sentence != "nothing", f"{name} is accepted"
        assert len(sentence.split()) >= 4, f"{name}: {sentence}"
        assert not sentence.startswith("RuntimeError"), f"{name}: {sentence}"


def test_the_page_shows_what_is_said(told: list[tuple[str, str]]) -> None:
    rows = [f"| `{name.replace('|', chr(92) + '|')}` | {said.replace('|', chr(92) + '|')} |\n" for name, said in told]
    table = "".join(["| input | what is said |\n|---|---|\n", *rows])
    head, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if os.environ.get("PCIE_ALLREDUCE_WRITE_PAGES") == "1":
        PAGE.write_text(head + BEGIN + table + END + tail)
        shown = table
    assert shown == table
