"""All seams of SGLang, in the order of the table."""

from __future__ import annotations

from . import sglang_calls, sglang_doors, sglang_fusing, sglang_groups

SEAMS = (*sglang_doors.SEAMS, *sglang_groups.SEAMS, *sglang_calls.SEAMS, *sglang_fusing.SEAMS)
