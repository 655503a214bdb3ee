"""Files of predicted lengths: what is read, and what is refused where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.cli.lengths import LengthsFile, parse_lengths, read_lengths
from heddle.errors import InvalidRequest


def parse(text: str | bytes) -> LengthsFile:
    """The content of a file called ``lengths``."""
    return parse_lengths(text.encode() if isinstance(text, str) else text, name="lengths")


def test_a_number_a_line() -> None:
    """Whole or not, in any notation, between blank lines and line ends of any system."""
    assert LengthsFile((0.5,), ((12.0,), (0.0,), (1500.0,), (7.5,))) == parse("12\n\n0\r\n 1.5e3 \n7.5")


def test_objects_with_tokens() -> None:
    """Other keys are nobody's business."""
    assert LengthsFile((0.5,), ((12.0,), (3.5,))) == parse('{"tokens": 12, "id": "a"}\n{"tokens": 3.5}\n')


def test_tokens_are_the_median_of_quantiles_that_name_none() -> None:
    """Levels come out ascending, whatever their order in the file."""
    read = parse('{"tokens": 10, "quantiles": {"0.9": 40, "0.1": 2}}')
    assert LengthsFile((0.1, 0.5, 0.9), ((2.0, 10.0, 40.0),)) == read


def test_a_median_among_the_quantiles_wins() -> None:
    """``tokens`` may be a mean, which lies elsewhere."""
    read = parse('{"tokens": 99, "quantiles": {"0.5": 10, "0.9": 40}}')
    assert LengthsFile((0.5, 0.9), ((10.0, 40.0),)) == read


def test_a_line_without_quantiles_is_certain() -> None:
    """Some lengths are known, say those of trajectories that have ended."""
    read = parse('7\n{"tokens": 10, "quantiles": {"0.9": 40}}\n{"tokens": 8, "quantiles": null}\n')
    assert LengthsFile((0.5, 0.9), ((7.0, 7.0), (10.0, 40.0), (8.0, 8.0))) == read


@pytest.mark.parametrize("text", ["", "\n", " \n\r\n", b"\xef\xbb\xbf"])
def test_a_file_without_lengths_is_no_trajectories(text: str | bytes) -> None:
    """Nothing to plan is not an error."""
    assert LengthsFile((0.5,), ()) == parse(text)


@pytest.mark.parametrize(
    ("line", "path", "reason"),
    [
        ("-1", "lengths:3", "from 0 to 1e+12, got -1.0"),
        ("nan", "lengths:3", "got nan"),
        ("inf", "lengths:3", "got inf"),
        ("1e13", "lengths:3", "got 10000000000000.0"),
        ("many", "lengths:3", "got 'many'"),
        ("1 2", "lengths:3", "got '1 2'"),
        ("[1]", "lengths:3", "got '[1]'"),
        ("{", "lengths:3", "not JSON"),
        ('{"tokens": NaN}', "lengths:3", "not JSON"),
        ('{"length": 1}', "lengths:3", "no tokens"),
        ('{"tokens": -1}', "lengths:3: tokens", "got -1"),
        ('{"tokens": "1"}', "lengths:3: tokens", "got '1'"),
        ('{"tokens": true}', "lengths:3: tokens", "got True"),
        ('{"tokens": null}', "lengths:3: tokens", "got None"),
        ('{"tokens": 1, "quantiles": [1]}', "lengths:3: quantiles", "must map levels"),
        ('{"tokens": 1, "quantiles": {"1": 2}}', "lengths:3: quantiles", "between 0 and 1, got '1'"),
        ('{"tokens": 1, "quantiles": {"high": 2}}', "lengths:3: quantiles", "got 'high'"),
        ('{"tokens": 1, "quantiles": {"0.9": -2}}', "lengths:3: quantiles.0.9", "got -2"),
        ('{"tokens": 9, "quantiles": {"0.9": 2}}', "lengths:3: quantiles", "0.5: 9, 0.9: 2"),
        ('{"tokens": 1, "quantiles": {"0.9": 2, "0.90": 2}}', "lengths:3: quantiles", "given twice"),
    ],
)
def test_nonsense_names_line_and_reason(line: str, path: str, reason: str) -> None:
    """The first bad line is reported, by its number in the file."""
    with pytest.raises(InvalidRequest) as raised:
        parse(f"1\n\n{line}\n-5\n")
    assert path == raised.value.path
    assert reason in raised.value.message


def test_levels_must_agree() -> None:
    """Quantiles at different levels cannot be compared."""
    with pytest.raises(InvalidRequest, match="those of line 1") as raised:
        parse('{"tokens": 1, "quantiles": {"0.9": 2}}\n{"tokens": 1, "quantiles": {"0.8": 2}}\n')
    assert raised.value.path == "lengths:2"


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    """By the path that was typed."""
    path = str(tmp_path / "absent")
    with pytest.raises(InvalidRequest, match="cannot be read") as raised:
        read_lengths(path)
    assert raised.value.path == path


@given(st.binary(max_size=80))
def test_any_bytes_are_lengths_or_a_complaint_with_a_line(content: bytes) -> None:
    """No other error leaves the parser."""
    try:
        rows, complaint = parse(content).quantiles, None
    except InvalidRequest as exc:
        rows, complaint = (), exc.path
    assert all(0 <= tokens <= 1e12 for row in rows for tokens in row)
    assert complaint is None or complaint.startswith("lengths:")


@given(st.lists(st.floats(0, 1e12), max_size=20))
def test_numbers_come_back_as_they_were(values: list[float]) -> None:
    """Both notations keep every digit, order included."""
    rows = tuple((value,) for value in values)
    assert rows == parse("\n".join(map(repr, values))).quantiles
    assert rows == parse("\n".join(f'{{"tokens": {value!r}}}' for value in values)).quantiles
