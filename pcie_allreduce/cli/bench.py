"""`pcie-allreduce bench`: words to values and no more; `pcie_allreduce.bench` does the rest."""

from __future__ import annotations

import argparse
import sys

EPILOG = """
--mode graph times CUDA graphs of 122 back-to-back calls (the layers of one verify pass), --mode eager the same calls
one by one. Every size is checked in the same run. Exit code: 0 all right, 1 a rank failed or a sum is wrong, 2 what was
asked cannot be run here. PCIE_ALLREDUCE_COMMIT names the commit in the JSON where the package is outside a checkout.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench", description="Measures all-reduces on this machine beside torch.distributed.", epilog=EPILOG
    )
    add = parser.add_argument
    add("--ranks", type=parse_count, metavar="N", help="rank processes; default: one for each GPU, or 2 CPU ranks")
    add(
        "--sizes", type=parse_sizes, default=(), metavar="BYTES,...", help="payloads of one rank; default: 1 KB to 1 MB"
    )
    add("--dtype", metavar="NAME", help="bf16 (default), fp16 or fp32")
    add("--repeats", type=parse_count, default=3, metavar="N", help="times that the procedure is repeated; default 3")
    add("--json", metavar="FILE", help="write environment and rows to FILE")
    add("--plot", metavar="FILE", help="draw the medians over the size to FILE (.png, .svg, .pdf)")
    add("--input", metavar="FILE", help="reduce recorded partial sums (.npz of benchmarks/record_inputs.py), not noise")
    add("--backends", type=parse_words, default=(), metavar="NAME,...", help="default: all that this device has")
    add(
        "--mode",
        type=parse_words,
        default=(),
        metavar="NAME,...",
        help="graph, eager; default: both, eager on CPU ranks",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs where there are some")
    algorithms = "of ours: auto (default), one_shot, two_shot, island, pull"
    add("--algorithm", type=parse_words, default=("auto",), metavar="NAME,...", help=algorithms)
    add(
        "--nccl-sweep",
        nargs="?",
        const="descent",
        choices=("descent", "full"),
        help="NCCL's settings instead: knob by knob, or (full) all combinations, each in fresh processes",
    )
    add("--fused", action="store_true", help="with residual and RMSNorm: fused, behind the all-reduce, and without")
    add("--hidden", type=parse_count, metavar="N", help="values in a row that --fused normalises; default 7168")
    add("--rows", type=parse_sizes, default=(), metavar="N,...", help="of --fused; default 1,2,3,4,8,16,32")
    add("--halves", action="store_true", help="also a reduce-scatter and an all-gather, in two calls")
    add("--debug", action="store_true", help="show the traceback of a rank that failed")


def run(args: argparse.Namespace) -> int:
    from pcie_allreduce.bench.run import main
    from pcie_allreduce.bench.settings import Request

    request = Request(
        ranks=args.ranks,
        sizes=args.sizes,
        dtype=args.dtype,
        repeats=args.repeats,
        backends=args.backends,
        modes=args.mode,
        device=args.device,
        algorithms=args.algorithm,
        fused=args.fused,
        hidden=args.hidden,
        rows=args.rows,
        halves=args.halves,
    )
    if args.nccl_sweep:
        others = ("backends", "mode", "input", "plot", "fused", "hidden", "rows", "halves")
        given = [f"--{name}" for name in others if getattr(args, name)]
        if given or args.algorithm != ("auto",):
            print(f"--nccl-sweep does not go with {', '.join(given) or '--algorithm'}", file=sys.stderr)
            return 2
        from pcie_allreduce.nccl_sweep.run import main as sweep

        return sweep(request, args.nccl_sweep, args.json)
    return main(request, input_path=args.input, json_path=args.json, debug=args.debug, plot_path=args.plot)


def parse_words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return words


def parse_sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_count(word) for word in parse_words(text))


def parse_count(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
