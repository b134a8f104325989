"""The benchmark of messages: its line of JSON, and that all ways make the same letter (which it asserts itself)."""

from benchmarks.mime import measure


def test_every_way_is_measured() -> None:
    found = measure(letters=20, runs=1)
    assert list(found) == ["letters", "bytes", "compiled_us", "plain_us", "email_us", "times_as_fast"]
    assert found["letters"] == 20
    assert all(value > 0 for value in found.values())
