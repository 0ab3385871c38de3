"""sinks.toml: each wrong line is named, and a secret is never in it."""

import re
from pathlib import Path

import pytest

from raftlog.cluster.sinks.settings import SinkSettingsError, read_sinks, secret

TARGET = 'to = "sqlite"\npath = "shop.sqlite"\ntable = "customers"'
REDIS = 'to = "redis"\nurl = "redis://h"\nkey = "k:{id}"'
HOOK = 'to = "webhook"\nurl = "http://h"\nsecret = "$HOME"'

GOOD = f"""
[sink.customers]
from = {{ keys = "customer/" }}
{TARGET}
columns = {{ id = "key", name = "value.name" }}
primary_key = ["id"]
"""


def test_a_file_has_sinks_by_name(tmp_path: Path) -> None:
    """All of them, or those that are named."""
    path = tmp_path / "sinks.toml"
    path.write_text(GOOD + GOOD.replace("sink.customers", "sink.more"))
    found = read_sinks(path)
    assert [*found.chosen([])] == ["customers", "more"]
    assert [*found.chosen(["more"])] == ["more"]
    with pytest.raises(SinkSettingsError, match="has no sink no; it has customers, more"):
        found.chosen(["no"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('keys = "customer/"', 'keyz = "customer/"', r"\[sink.customers\]: .*unknown field `keyz`"),
        ('keys = "customer/"', 'keys = "a", table = "b"', "name exactly one of keys, records, table, import"),
        ('"sqlite"', '"oracle"', "to = 'oracle' is no store: it is one of postgresql, sqlite, duckdb"),
        ('path = "shop.sqlite"', "", "missing required field `path`"),
        ('path = "shop.sqlite"', 'path = "a"\nurl = "b"', "unknown field `url`"),
        ('["id"]', '["no"]', "primary_key names no"),
        ("[sink.customers]", '[sink."a/b"]', "the name of a sink"),
        ("[sink.customers]", "[customers]", r"has tables \[sink.NAME\]"),
        ("[sink.customers]", "[sink.customers", "cannot be read"),
        ('to = "sqlite"', 'to = "sqlite"\nstart = 0', "start is an index from 1"),
        ('to = "sqlite"', 'to = "sqlite"\nstart = "now"', "start"),
        ('to = "sqlite"', 'to = "sqlite"\nrefused = "drop"', "refused"),
        ('{ keys = "customer/" }', '{ records = "x", values = "csv" }', "belong together"),
        ('{ keys = "customer/" }\nto = "sqlite"', '{ records = "x" }\nstart = "state"\nto = "sqlite"', "it needs from"),
        (TARGET, REDIS.replace(":{id}", ""), "names each column of the primary key once, and no other: {id}"),
        (TARGET, f"{REDIS}\nttl = 0", "ttl is a number of seconds from 1"),
        (TARGET, f'{REDIS}\nkeep = "text"', "keep"),
        (TARGET, HOOK.replace("$HOME", "open"), 'secret is not in sinks.toml: secret = "@FILE"'),
        (TARGET, HOOK.replace("http", "ftp"), "url is http://HOST/PATH"),
        (TARGET, HOOK.replace("//", "//me@"), "without a user"),
        (TARGET, HOOK.replace("//", "//me:pw@"), "no place for one"),
        (TARGET, f"{HOOK}\nbatch = 0", "batch is a number of changes from 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """With the file and the sink, before anything is opened."""
    path = tmp_path / "sinks.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))

    def opened() -> None:
        sinks = read_sinks(path)
        sinks.open_store("customers")

    with pytest.raises(SinkSettingsError, match=message):
        opened()


def test_every_example_of_the_page_is_a_file_of_sinks(tmp_path: Path) -> None:
    """docs/sinks.md shows two: one sink, and three of one table."""
    page = (Path(__file__).parents[3] / "docs" / "sinks.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "sinks.toml"
    names = []
    for block in blocks:
        path.write_text(block)
        names.append([*read_sinks(path).sinks])
    assert names == [["customers"], ["cache", "search", "reports"]]


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from sinks.toml itself; no message has it."""
    (tmp_path / "shop.url").write_text("postgresql://me:hidden@db/shop\n")
    monkeypatch.setenv("SHOP_URL", "host=db password=hidden")
    assert secret("@shop.url", tmp_path) == "postgresql://me:hidden@db/shop"
    assert secret("$SHOP_URL", tmp_path) == "host=db password=hidden"
    assert secret("host=db user=me", tmp_path) == "host=db user=me"
    for given in ("postgresql://me:hidden@db/shop", "host=db password=hidden", "host=db PASSWORD = hidden"):
        with pytest.raises(SinkSettingsError, match="no place for one") as refused:
            secret(given, tmp_path)
        assert "hidden" not in str(refused.value)
    with pytest.raises(SinkSettingsError, match=r"no\.url cannot be read"):
        secret("@no.url", tmp_path)
    with pytest.raises(SinkSettingsError, match="the environment has no NO_URL"):
        secret("$NO_URL", tmp_path)
