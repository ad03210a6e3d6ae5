"""The JSON document: `environment`, and `rows` whose keys and vocabularies are fixed for all later readers.

A row holds only what was measured. What was not measured stands in `environment.not_run` with its reason, so that no
reader meets a number that is none.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TRANSPORTS = ("peer", "host", "cpu", "none")
ALGORITHMS = ("one_shot", "two_shot", "island", "pull", "none")
MODES = ("graph", "eager")
DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Row:
    """One backend at one size.

    `transport` and `algorithm` are `none` where the backend does not tell them or has none. `bytes` is the payload of
    one rank. Times are microseconds per call: one *replay* is a CUDA graph (or a block) of back-to-back calls, its time
    is that of the slowest rank divided by the number of calls, and a *repeat* is the median over its `replays`
    replays. `us_median`, `us_min` and `us_max` are the median, the lowest and the highest of the `repeats` repeats.
    `rows` and `hidden`: the run was one with residual and RMSNorm over such rows, which are in this row's time where
    `fused` holds or the backend's name ends with "+norm"; what is judged is then the new residual, of a residual of
    zeros. A backend whose name ends with "-halves" makes each sum by a reduce-scatter and an all-gather.
    `exact`, `identical` and `correctly_rounded` are defined in `correctness`; they are null for `floor`, which sums
    nothing.
    """

    backend: str
    transport: str
    algorithm: str
    world: int
    gpus: int
    dtype: str
    bytes: int
    mode: str
    us_median: float
    us_min: float
    us_max: float
    replays: int
    repeats: int
    exact: bool | None
    identical: bool | None
    correctly_rounded: bool | None
    fused: bool = False
    rows: int | None = None
    hidden: int | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("transport", TRANSPORTS),
            ("algorithm", ALGORITHMS),
            ("mode", MODES),
            ("dtype", DTYPES),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} of backend {self.backend}: known are {known}")


KEYS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True)
class Document:
    environment: dict[str, Any]
    rows: list[Row]

    def write(self, path: Path) -> None:
        """Writes the whole file or none of it."""
        text = json.dumps({"environment": self.environment, "rows": [asdict(row) for row in self.rows]}, indent=1)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(text + "\n")
        part = Path(file.name)
        part.chmod(0o644)
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Document:
        """Reads a file that `write` made; `ValueError` names the file where it is another."""
        data = json.loads(path.read_text())
        try:
            return cls(data["environment"], [Row(**row) for row in data["rows"]])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a benchmark result: {error}") from error
