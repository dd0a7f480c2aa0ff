"""Configuration files: what is accepted, and how the rest is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from dflashd.supervisor import config
from dflashd.supervisor.http_section import HttpSection
from dflashd.supervisor.limits import Limits
from dflashd.supervisor.model_section import ModelSection

EXAMPLE = Path(__file__).parents[2] / "dflashd.example.toml"


def parse(text: str) -> config.Config:
    return config.parse(text, source="x.toml", base_dir=Path("/base"))


def test_example_file_is_valid_and_says_every_limit_with_its_default() -> None:
    """The example works as it is, mentions every limit, and shows the true default of each."""
    loaded = config.load(EXAMPLE)
    assert set(loaded.models) == {"smollm", "big"}
    written = tomllib.loads(EXAMPLE.read_text())["daemon"]
    assert set(written) == set(Limits.__struct_fields__) | {"memory_share"}
    assert loaded.daemon == config.DaemonSection()


def test_example_file_shows_every_key_of_a_model() -> None:
    """A reader of the example learns of every key a model may have."""
    written = tomllib.loads(EXAMPLE.read_text())["models"]["big"]
    assert set(written) == set(ModelSection.__struct_fields__)


def test_example_file_shows_every_key_of_the_gateway() -> None:
    """The same of [http], each key at its default."""
    written = tomllib.loads(EXAMPLE.read_text())["http"]
    assert set(written) == set(HttpSection.__struct_fields__)
    assert config.load(EXAMPLE).http == HttpSection()


def test_without_its_section_there_is_no_gateway() -> None:
    """HTTP is never listened to unasked."""
    assert parse("").http is None
    assert parse("[http]").http == HttpSection()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.evil"])
def test_the_gateway_does_not_listen_beyond_the_loopback(host: str) -> None:
    """Whoever could be reached from elsewhere needs keys: refused before anything starts."""
    with pytest.raises(config.ConfigError, match="keys"):
        parse(f"[http]\nhost = '{host}'")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_every_loopback_will_do(host: str) -> None:
    """Any address of this machine alone."""
    section = parse(f"[http]\nhost = '{host}'").http
    assert section is not None
    assert section.url == f"http://{'[::1]' if host == '::1' else host}:8383"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[daemon]\npong_timeout = 3", ("pong_timeout ", "[daemon]", "pong_timeout_s")),
        ("[http]\nprot = 1", ("prot ", "[http]", "port")),
        ("[deamon]\n", ("deamon", "top level", "daemon")),
        ("[models.a]\ntarget='t'\ndrat='d'", ("drat", "[models.a]", "draft")),
        (
            "[models.a]\ntarget='t'\n[models.a.sampling]\ntemprature=1",
            ("temprature", "[models.a.sampling]", "temperature"),
        ),
        (
            "[models.'q/w.1']\ntarget='t'\nblock_token=1",
            ("block_token ", "[models.q/w.1]", "block_tokens"),
        ),
    ],
)
def test_unknown_key_is_named_with_its_section_and_the_nearest_known(
    text: str, parts: tuple[str, ...]
) -> None:
    """A misspelt key is an error that says where it is and what was meant."""
    with pytest.raises(config.ConfigError) as caught:
        parse(text)
    assert all(part in str(caught.value) for part in ("x.toml", *parts))


@pytest.mark.parametrize(
    "text",
    [
        "[daemon]\nping_interval_s = 0",
        "[daemon]\nqueued_requests = 'many'",
        "[daemon]\nqueued_requests = true",
        "[models.a]\n",
        "[models.'../a']\ntarget = 't'",
        "[models.a]\ntarget = 't'\nblock_tokens = 65",
        "models = 3",
        "daemon = 'x'",
        "[models]\na = 1",
        "[daemon\n",
    ],
)
def test_wrong_values_are_one_sentence(text: str) -> None:
    """A value of the wrong type or range is refused in one line, never accepted."""
    with pytest.raises(config.ConfigError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_paths_count_from_the_file_and_repositories_stay() -> None:
    """``./x`` is made absolute beside the file; ``owner/name`` is left alone."""
    loaded = parse("[daemon]\nruntime_dir='run'\n[models.a]\ntarget='./w'\ndraft='z-lab/x'")
    assert loaded.runtime_dir == Path("/base/run")
    assert loaded.models["a"].target == "/base/w"
    assert loaded.models["a"].draft == "z-lab/x"


def test_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(config.ConfigError, match=r"gone\.toml cannot be read"):
        config.load(tmp_path / "gone.toml")


def test_empty_file_is_a_daemon_without_models() -> None:
    """Everything has a default."""
    assert parse("") == config.Config()


def test_json_schema_is_json_and_knows_the_sections() -> None:
    """The schema can be published as it is."""
    text = msgspec.json.encode(config.json_schema()).decode()
    assert all(word in text for word in ("DaemonSection", "ModelSection", "pong_timeout_s"))


@pytest.mark.parametrize(
    "text",
    [
        "[models.a]\ntarget = '~no-such-user/x'",
        "[daemon]\nruntime_dir = '~no-such-user/x'",
        "[daemon]\nruntime_dir = ''",
        '[daemon]\nstate_dir = "/a\\u0000b"',
        "a = " + "[" * 5000,
        "[models.a]\ntarget = 't'\nmax_tokens = " + "1" * 5000,
    ],
)
def test_what_no_path_or_number_can_be_is_one_sentence(text: str) -> None:
    """Whatever is in the file, its reader gets a sentence and never a traceback."""
    with pytest.raises(config.ConfigError, match=r"x\.toml"):
        parse(text)
