"""Profiles: made monotone, interpolated, extrapolated with care, read from CSV, shipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import ConfigError
from heddle.planning.plan import usable_degrees
from heddle.planning.profile import DegreeProfile, Profile
from heddle.planning.profile_csv import parse_profiles
from heddle.planning.shipped import shipped_profiles

HEADER = "gpu,model,tp,batch,context_len,tpot_ms"


def make_csv(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def test_a_dip_is_lifted_to_what_came_before_it() -> None:
    """A batch of two that seems faster than one counts as fast as one."""
    degree = DegreeProfile.measured(1, [(4, 9.0), (1, 6.0), (2, 5.0)])

    assert degree.batches == (1, 2, 4)
    assert degree.step_seconds == (6.0, 6.0, 9.0)
    assert degree.token_seconds == 6.0
    assert [degree.interference(batch) for batch in (1, 2, 3, 4)] == [1.0, 1.0, 1.25, 1.5]


def test_beyond_the_measured_batch_no_throughput_is_promised_that_nobody_measured() -> None:
    """Flat curves grow in proportion to the batch, steep ones keep their slope."""
    flat = DegreeProfile.measured(1, [(1, 4.0), (4, 4.0)])
    steep = DegreeProfile.measured(1, [(1, 1.0), (2, 2.0), (3, 6.0)])

    assert flat.step_table(8)[[4, 6, 8]].tolist() == [4.0, 6.0, 8.0]
    assert steep.step_table(5)[[3, 4, 5]].tolist() == [6.0, 10.0, 14.0]


@given(
    st.dictionaries(st.integers(2, 60), st.floats(1e-3, 1e3), max_size=8),
    st.floats(1e-3, 1e3),
    st.integers(0, 200),
)
def test_step_tables_start_at_zero_and_never_fall(later: dict[int, float], alone: float, most: int) -> None:
    """Whatever was measured; throughput beyond the measured batches does not exceed the last one's."""
    degree = DegreeProfile.measured(1, [(1, alone), *later.items()])
    table = degree.step_table(most)

    assert table.shape == (most + 1,)
    assert table[0] == 0.0
    assert np.all(np.diff(table) >= 0)
    last = degree.batches[-1]
    beyond = np.arange(last, most + 1)
    measured = last / degree.step_seconds[-1]
    assert np.all(beyond / table[last : most + 1] <= measured * (1 + 1e-9))


def test_concurrency_is_the_smaller_of_slots_and_kv_capacity() -> None:
    """Nothing stated: no cap. No room for one: zero."""
    assert DegreeProfile(1, (1,), (1.0,)).concurrency(4096) is None
    assert DegreeProfile(1, (1,), (1.0,), slots=8).concurrency(4096) == 8
    assert DegreeProfile(1, (1,), (1.0,), slots=8, kv_capacity_tokens=9000).concurrency(4096) == 2
    assert DegreeProfile(1, (1,), (1.0,), kv_capacity_tokens=9000).concurrency(0) is None
    assert DegreeProfile(1, (1,), (1.0,), kv_capacity_tokens=4000).concurrency(4096) == 0


def test_a_profile_is_read_from_csv() -> None:
    """Columns in any order, unknown ones ignored, optional ones taken."""
    text = make_csv(
        "1,2,8.0,x,64,9000",
        "1,1,6.0,x,64,9000",
        "2,1,4.0,x,128,",
        header="tp,batch,tpot_ms,note,slots,kv_capacity_tokens",
    )
    profile = parse_profiles("\ufeff" + text, source="p.csv").select()

    assert [degree.tp_degree for degree in profile.degrees] == [1, 2]
    assert profile[1] == DegreeProfile(1, (1, 2), (0.006, 0.008), 64, 9000)
    assert profile[2] == DegreeProfile(2, (1,), (0.004,), 128)


def test_between_contexts_step_times_are_interpolated_and_outside_the_nearest_holds() -> None:
    """And without a wish the shortest context from 4,096 on is taken."""
    table = parse_profiles(make_csv("g,m,1,1,1000,2.0", "g,m,1,1,5000,4.0", "g,m,1,1,9000,8.0"))

    assert [table.select(context_tokens=c)[1].token_seconds for c in (0, 1000, 3000, 7000, 99_000)] == (
        pytest.approx([0.002, 0.002, 0.003, 0.006, 0.008])
    )
    assert table.select().context_tokens == 5000


def test_gpu_and_model_are_needed_only_where_there_is_a_choice() -> None:
    """A wrong name lists the right ones."""
    table = parse_profiles(make_csv("a,m,1,1,0,2.0", "b,m,1,1,0,4.0"), source="p.csv")

    assert table.select("b").gpu == "b"
    assert (table.gpus(), table.models()) == (("a", "b"), ("m",))
    with pytest.raises(ConfigError, match=r"p\.csv holds more than one gpu; choose one of a, b"):
        table.select()
    with pytest.raises(ConfigError, match=r"no model 'x'; it has 'm'"):
        table.select("a", "x")
    with pytest.raises(ConfigError, match="context length"):
        table.select("a", context_tokens=float("nan"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: missing column tp, batch, tpot_ms"),
        (HEADER + "\n", "no measurement below the header"),
        (make_csv("g,m,1,1,0,2.0", "g,m,1,x,0,2.0"), "line 3: batch must be a number, got 'x'"),
        (make_csv("g,m,1,1.5,0,2.0"), "line 2: batch must be a whole number"),
        (make_csv("g,m,0,1,0,2.0"), "line 2: tp is out of range"),
        (make_csv("g,m,1,1,0,-2.0"), "line 2: tpot_ms is out of range"),
        (make_csv("g,m,1,1,0,nan"), "line 2: tpot_ms is out of range"),
        (make_csv("g,m,1,1,0,1e30"), "line 2: tpot_ms is out of range"),
        (make_csv("g,m,1,1,0,0"), "line 2: tpot_ms must be positive"),
        (make_csv("g,m,1,1,0,"), "line 2: tpot_ms must be a number, got ''"),
        (make_csv("g,m,1,1,0,2,9"), "line 2: more fields than the header has"),
        (make_csv("g,m,1,1,0,2", "g,m,1,1,0,3"), "line 3: gpu, model, tp, batch and context_len of line 2"),
        (make_csv("g,m,1,1,-1,2"), "line 2: context_len is out of range"),
    ],
)
def test_a_wrong_file_names_its_line(text: str, message: str) -> None:
    """The first wrong line, and what is wrong with it."""
    with pytest.raises(ConfigError, match=message):
        parse_profiles(text)


def test_a_gap_at_batch_one_and_contradictions_are_refused() -> None:
    """T is the step time alone; a worker has one number of slots."""
    with pytest.raises(ConfigError, match="tp 2: no row for batch 1"):
        parse_profiles(make_csv("g,m,1,1,0,2", "g,m,2,4,0,2")).select()
    header = HEADER + ",slots"
    with pytest.raises(ConfigError, match="line 3: slots differs from line 2"):
        parse_profiles(make_csv("g,m,1,1,0,2,8", "g,m,1,2,0,2,9", header=header)).select()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DegreeProfile(0, (1,), (1.0,)),
        lambda: DegreeProfile(1, (), ()),
        lambda: DegreeProfile(1, (2,), (1.0,)),
        lambda: DegreeProfile(1, (1, 2), (1.0,)),
        lambda: DegreeProfile(1, (1, 1), (1.0, 1.0)),
        lambda: DegreeProfile(1, (1, 2), (2.0, 1.0)),
        lambda: DegreeProfile(1, (1,), (float("nan"),)),
        lambda: DegreeProfile(1, (1,), (1.0,), slots=0),
        lambda: DegreeProfile(1, (1,), (1.0,), kv_capacity_tokens=-1),
        lambda: Profile("g", "m", 0.0, ()),
        lambda: Profile("g", "m", 0.0, (DegreeProfile(2, (1,), (1.0,)), DegreeProfile(1, (1,), (1.0,)))),
        lambda: Profile("g", "m", 0.0, (DegreeProfile(2, (1,), (1.0,)),))[1],
    ],
)
def test_impossible_profiles_are_refused(wrong: Callable[[], object]) -> None:
    """Wherever they come from."""
    with pytest.raises(ConfigError):
        wrong()


@given(st.text(alphabet='gpumodel,tp_batchxn1234567890.-e\n\r" ', max_size=120))
def test_any_text_is_a_profile_or_a_config_error(noise: str) -> None:
    """Below a right header too."""
    for text in (noise, make_csv(noise), make_csv("g,m,1,1,0,2", noise)):
        with suppress(ConfigError):
            profile = parse_profiles(text).select("g", "m")
            assert all(degree.token_seconds > 0 for degree in profile.degrees)


def test_the_shipped_table_has_three_gpus_and_three_models() -> None:
    """All with degrees 1, 2, 4 and 8; a higher degree is faster alone, and more memory holds more."""
    table = shipped_profiles()
    assert table.gpus() == ("h100_sxm", "h200_sxm", "a100_sxm")
    assert table.models() == ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
    for gpu in table.gpus():
        for model in table.models():
            profile = table.select(gpu, model)
            assert [degree.tp_degree for degree in profile.degrees] == [1, 2, 4, 8]
            alone = [degree.token_seconds for degree in profile.degrees]
            assert alone == sorted(alone, reverse=True)
            capacity = [degree.kv_capacity_tokens or 0 for degree in profile.degrees]
            assert capacity == sorted(capacity)
            assert profile.context_tokens == 4096
            assert all(degree.prefill_tokens_per_s for degree in profile.degrees)


def test_usable_degrees_pass_over_what_cannot_be_but_refuse_it_when_named() -> None:
    """By budget, KV heads and memory."""
    profile = shipped_profiles().select("h100_sxm", "Qwen3-32B")

    assert usable_degrees(profile, 64) == (8, 4, 2, 1)
    assert usable_degrees(profile, 5) == (4, 2, 1)
    assert usable_degrees(profile, 64, kv_heads=4) == (4, 2, 1)
    assert usable_degrees(profile, 64, context_tokens=32_768) == (8, 4, 2)
    assert usable_degrees(profile, 64, degrees=(2, 8, 2)) == (8, 2)
    with pytest.raises(ConfigError, match="degree 8 exceeds the budget of 5 GPUs"):
        usable_degrees(profile, 5, degrees=(8, 1))
    with pytest.raises(ConfigError, match="degree 8 does not divide the 4 KV heads"):
        usable_degrees(profile, 8, degrees=(8,), kv_heads=4)
    with pytest.raises(ConfigError, match="degree 1 has no memory for a single trajectory of 32768 tokens"):
        usable_degrees(profile, 1, context_tokens=32_768)
    with pytest.raises(ConfigError, match="no degree 3; it has 1, 2, 4, 8"):
        usable_degrees(profile, 8, degrees=(3,))
    with pytest.raises(ConfigError, match="at least one parallel degree"):
        usable_degrees(profile, 8, degrees=())
    for gpus in (0, -1, 10**9):
        with pytest.raises(ConfigError, match="budget must be 1 to"):
            usable_degrees(profile, gpus)


def test_describing_a_plan_does_not_load_the_compiler() -> None:
    """numba takes half a second to import; help texts and profile reading must not pay for it."""
    program = (
        "import sys, heddle, heddle.control.build, heddle.planning.plan, heddle.planning.shipped, "
        "heddle.planning.hedge; print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
