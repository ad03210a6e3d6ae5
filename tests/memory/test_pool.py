"""The arithmetic of the pool, against sums done by hand and against the engines' own figures."""

from __future__ import annotations

import pytest

from pcie_allreduce.memory import told
from pcie_allreduce.memory.facts import GB, NOT_CHUNKED, CannotTell, Facts
from pcie_allreduce.memory.model import Model
from pcie_allreduce.memory.pool import Pool, activations, pool_of

SEED = Facts(before=94.04, after=21.78, fraction=0.55)


def pool(facts: Facts, model: Model | None = None) -> Pool:
    facts.check()
    return pool_of(facts, model or Model())


@pytest.mark.parametrize(("fraction", "gb"), [(0.55, -20.54), (0.80, 2.97), (0.85, 7.67), (0.88, 10.50), (0.90, 12.38)])
def test_the_pool_is_what_sglang_makes_of_the_same_lines(fraction: float, gb: float) -> None:
    assert pool(SEED.with_given(fraction=fraction)).gb == pytest.approx(gb, abs=0.006)


def test_the_fraction_must_rise_above_what_the_weights_take() -> None:
    seed = pool(SEED)
    assert seed.exact_low == pytest.approx(1 - 21.78 / 94.04)
    assert (seed.low, seed.fits) == (0.769, False)
    assert seed.at(0.768) < 0 < seed.at(seed.low)
    assert seed.left(seed.high) >= seed.needed_later > seed.left(seed.high + 0.001)


def test_a_setting_that_leaves_exactly_nothing_is_below_the_range() -> None:
    assert pool(Facts(before=100.0, after=50.0, fraction=0.5)).low == 0.501


def test_a_draft_model_lowers_the_upper_end_by_its_weights_and_its_own_cache() -> None:
    without, late = pool(SEED), pool(SEED.with_given(draft=3.0))
    assert without.high - late.high > 3.0 / 94.04
    assert late.left(late.high) >= late.needed_later > late.left(late.high + 0.001)
    assert late.left(0.9) == pytest.approx(94.04 * 0.1 - late.at(0.9) / 61)
    counted = pool(SEED.with_given(draft=3.0, draft_counted=True))
    assert counted.needed_later == pytest.approx(without.needed_later)


def test_vllm_takes_its_share_of_the_whole_gpu() -> None:
    facts = Facts(total=80.0, free=79.0, weights=60.0, other=1.0, activations=2.0, graphs=0.5, fraction=0.9)
    found = pool(facts)
    assert found.gb == pytest.approx(80 * 0.9 - 63)
    assert (found.low, found.high, found.fits) == (0.788, 0.981, True)  # 63 / 80; (79 - 0.5) / 80


def test_a_request_that_must_fit_raises_the_lower_end() -> None:
    facts = Facts(total=80.0, weights=60.0, activations=0.0, fraction=0.8, needed=8.0)
    assert pool(facts).low == pytest.approx(0.85)
    assert "one request of the longest kind needs 8.00 GB" in told.sentences(facts, pool(facts))[0]


def test_where_memory_ran_out_the_upper_end_lies_below() -> None:
    facts = Facts(before=100.0, after=40.0, fraction=0.9, failure="later", wanted=5.0).settled()
    assert pool(facts).high == pytest.approx(0.85)
    assert "asking for another 5.00 GB" in told.sentences(facts, pool(facts))[0]


def test_no_range_is_no_advice_to_raise() -> None:
    facts = Facts(before=94.04, after=2.0, fraction=0.9)
    assert "No setting works" in told.sentences(facts, pool(facts))[0]
    assert told.settings(pool(facts)) == []


def test_a_pool_that_the_sum_leaves_and_the_log_denies_is_told() -> None:
    facts = SEED.with_given(fraction=0.9, failure="pool")
    assert "something else off it" in told.sentences(facts, pool(facts))[1]


def test_what_is_not_chunked_takes_more_than_what_is() -> None:
    """SGLang takes 16,384 tokens at once then, unless told otherwise; a longer prompt would take more."""
    chunked, whole = (activations(SEED.with_given(chunk=chunk), Model()) for chunk in (8192, NOT_CHUNKED))
    assert activations(SEED, Model()) == chunked
    assert whole.gb == pytest.approx(2 * chunked.gb)
    assert whole.origin.startswith("not chunked, assumed: 16,384 tokens x 12 tensors")


def test_a_full_gpu_is_a_finding_and_no_division() -> None:
    facts = Facts(before=0.0, after=0.0, fraction=0.9, failure="later", wanted=2.0).settled()
    (sentence,) = told.sentences(facts, pool(facts))
    assert sentence.startswith("It does not fit: nothing was free")
    assert [part.gb for part in told.parts(facts, pool(facts), Model())] == [0.0]
    vllm = Facts(total=79.15, free=0.0, fraction=0.9, failure="start")
    (sentence,) = told.sentences(vllm, pool(vllm))
    assert "0.00 GB are free. No setting works: CUDA graphs alone take 2.00 GB." in sentence


def test_tokens_are_the_pool_over_the_cache_of_a_token() -> None:
    found = pool(SEED.with_given(fraction=0.9))
    assert found.tokens(0.9) == int(found.gb * GB / (61 * 576 * 2))
    assert found.tokens(0.5) == 0
    assert pool(SEED.with_given(fraction=0.9), Model(kv_item=1)).tokens(0.9) in range(
        2 * found.tokens(0.9), 2 * found.tokens(0.9) + 2
    )


@pytest.mark.parametrize("facts", [SEED, SEED.with_given(fraction=0.8), Facts(total=80.0, weights=60.0, fraction=0.9)])
def test_the_settings_lie_in_the_range_and_work(facts: Facts) -> None:
    found = pool(facts)
    rows = told.settings(found)
    assert (rows[0]["fraction"], rows[-1]["fraction"]) == (found.low, found.high)
    assert all(row["pool_gb"] > 0 and row["left_gb"] >= found.needed_later for row in rows)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (Facts(), "give --before and --after, --total, or --log"),
        (Facts(before=94.0), "without --after and --mem-fraction-static"),
        (Facts(total=80.0), "without --gpu-memory-utilization"),
        (Facts(total=80.0, fraction=0.9), "without --weights"),
        (Facts(weights=70.0), "the log does not say how much memory the GPU has: give --total"),
        (Facts(before=94.0, total=80.0), "give one of them"),
        (Facts(before=20.0, after=21.0, fraction=0.5), "--after 21: it cannot be more than --before 20"),
        (SEED.with_given(fraction=1.1), "--mem-fraction-static 1.1: it must be above 0 and at most 1"),
        (SEED.with_given(draft=-1.0), "--draft -1: it must be within 0 and 1,000,000"),
        (SEED.with_given(before=float("nan")), "--before nan"),
        (SEED.with_given(chunk=-2), "--chunk -2: it must be within 1 and 1073741824, or -1"),
        (Facts(total=0.0, weights=0.0, fraction=0.9), "--total 0: a GPU has more than 0 GB"),
    ],
)
def test_what_does_not_suffice_is_named(facts: Facts, sentence: str) -> None:
    with pytest.raises(CannotTell, match=sentence.replace("(", r"\(")):
        pool(facts)
