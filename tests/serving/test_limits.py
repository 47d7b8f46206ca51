import stat
from hmac import compare_digest
from pathlib import Path

import pytest

from heed.errors import ConfigError
from heed.serving.limits import ApiKeys, RateLimiter, add_key


def test_a_key_is_stored_as_its_hash_and_matched(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    key, other_key = add_key(file), add_key(file)
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = ApiKeys(file)
    assert len(keys) == 2
    assert keys.match(key) != keys.match(other_key)
    for wrong in ("", key[:-1], key + "x", "\ud800", file.read_text()[:64]):
        assert keys.match(wrong) is None


def test_every_key_is_compared_in_constant_time_whether_or_not_one_matches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    valid_keys = [add_key(tmp_path / "keys.txt") for _ in range(3)]
    keys, compared = ApiKeys(tmp_path / "keys.txt"), []

    def compare(digest: str, known_digest: str) -> bool:
        compared.append((digest, known_digest))
        return compare_digest(digest, known_digest)

    monkeypatch.setattr("heed.serving.limits.hmac.compare_digest", compare)
    for key in (*valid_keys, "wrong"):
        keys.match(key)
        assert len(compared) == 3
        compared.clear()


def test_a_file_that_holds_no_hashes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# mine\n\nsecret\n")
    with pytest.raises(ConfigError, match=r"keys.txt:3: expected the SHA-256 of an API key, found 6 other characters"):
        ApiKeys(file)
    with pytest.raises(ConfigError, match="none: No such file or directory"):
        ApiKeys(tmp_path / "none")
    with pytest.raises(ConfigError, match=f"{tmp_path}: Is a directory"):
        add_key(tmp_path)


def test_keys_are_reloaded_when_their_file_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.txt"
    removed_key = add_key(file)
    keys = ApiKeys(file)
    kept_key = add_key(file)
    assert keys.match(kept_key)
    assert keys.match(removed_key)
    file.write_text(file.read_text().splitlines()[1] + "\n")  # remove the first key
    assert keys.match(removed_key) is None
    assert keys.match(kept_key)
    for content in ("no hash\n", None):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        caplog.clear()
        assert keys.match(kept_key)
        assert keys.match(removed_key) is None
        (message,) = caplog.messages  # logged once, not with every request
        assert message.startswith(f"API keys not reloaded, the previous 1 stay in force: {file}")
    file.write_text("# none\n")
    assert keys.match(kept_key) is None


def test_a_rate_limit_allows_a_burst_and_refills() -> None:
    rates = RateLimiter(per_minute=60, burst=3)
    assert [rates.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 1.0]
    assert rates.take("b", 0.0) == 0
    assert rates.take("a", 0.5) == pytest.approx(0.5)
    assert rates.take("a", 1.0) == 0
    assert [rates.take("a", 1000.0) for _ in range(4)] == [0, 0, 0, 1.0]


def test_the_rate_limits_of_many_callers_take_bounded_memory() -> None:
    rates = RateLimiter(per_minute=60, burst=1)
    for number in range(30_000):
        rates.take(str(number), 0.0)
    assert len(rates._buckets) == 10_000
