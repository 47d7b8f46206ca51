import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.text.rows import read_members, write_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@pytest.mark.parametrize("value", ["1e400", "-1E-400", "1.10", "123456789012345678901234567890.5", "9" * 5000, "-0"])
def test_numbers_are_written_back_unchanged(value: str) -> None:
    line = f'{{"id": {value}, "deep": [{{"x": {value}}}], "source": "a"}}'
    assert write_members(read_members(line), {"target": "b"}) == f'{line[:-1]}, "target": "b"}}'


def test_unpaired_surrogates_keep_their_escapes() -> None:
    line = r'{"\ud800": "\udfff", "source": "\u00e9"}'
    assert write_members(read_members(line), {"é": "ü"}) == r'{"\ud800": "\udfff", "source": "\u00e9", "é": "ü"}'


def test_a_new_value_replaces_the_old_one_and_the_last_of_duplicate_keys_counts() -> None:
    line = ' { "target" : 1.0 ,"a":[1, 2],\t"a" : {"b": 1.50} } '
    assert write_members(read_members(line), {"target": "x"}) == '{"target": "x", "a": {"b": 1.50}}'
    assert write_members(read_members("{ }"), {"target": "x"}) == '{"target": "x"}'


@settings(max_examples=50, deadline=None)
@given(row=ROWS, new=ROWS, indent=st.none() | st.just(1))
def test_writing_members_equals_updating_the_parsed_object(
    row: dict[str, object], new: dict[str, object], indent: int | None
) -> None:
    written = write_members(read_members(json.dumps(row, indent=indent)), new)
    assert json.loads(written) == {**row, **new}
