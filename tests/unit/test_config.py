"""Configuration files: what is accepted, and how the rest is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import pytest

from dflashd.supervisor.config import (
    configuration as config,
    file as config_file,
    schema as config_schema,
)
from dflashd.supervisor.config.http_section import HttpSection
from dflashd.supervisor.config.limits import Limits
from dflashd.supervisor.config.model_section import ModelSection
from dflashd.supervisor.config.tcp_section import TcpSection
from dflashd.supervisor.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "dflashd.example.toml"


def parse(text: str) -> config.Config:
    return config_file.parse(text, source="x.toml", base_dir=Path("/base"))


def test_example_file_is_valid_and_says_every_limit_with_its_default() -> None:
    """The example works as it is, mentions every limit, and shows the true default of each."""
    loaded = config_file.load(EXAMPLE)
    assert set(loaded.models) == {"smollm", "big"}
    written = tomllib.loads(EXAMPLE.read_text())["daemon"]
    own = {"memory_share", "watch_config", "worker_hang_s"}
    assert set(written) == {*Limits.__struct_fields__, *own}
    assert loaded.daemon == config.DaemonSection()


def test_example_file_shows_every_key_of_a_model() -> None:
    """A reader of the example learns of every key a model may have."""
    written = tomllib.loads(EXAMPLE.read_text())["models"]["big"]
    assert set(written) == set(ModelSection.__struct_fields__)


def test_example_file_shows_every_key_of_the_gateway() -> None:
    """The same of [http], each key at its default."""
    written = tomllib.loads(EXAMPLE.read_text())["http"]
    assert {*written, "tls_certificate", "tls_key"} == set(HttpSection.__struct_fields__)
    assert config_file.load(EXAMPLE).http == HttpSection()


def test_without_its_section_there_is_no_gateway() -> None:
    """HTTP is never listened to unasked."""
    assert parse("").http is None
    assert parse("[http]").http == HttpSection()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.evil"])
def test_beyond_the_loopback_the_gateway_asks_for_keys(host: str) -> None:
    """Whoever can be reached from elsewhere asks for keys, whatever the file says of it."""
    section = parse(f"[http]\nhost = '{host}'\nrequire_keys = false").http
    assert section is not None
    assert section.asks_for_keys


def test_half_a_certificate_is_refused() -> None:
    """A certificate without its key, or the reverse, is a mistake and not plain HTTP."""
    for key in ("tls_certificate", "tls_key"):
        with pytest.raises(ConfigError, match="go together"):
            parse(f"[http]\n{key} = 'x.pem'")


def test_example_file_shows_every_key_of_tcp() -> None:
    """The same of [tcp], each key but the addresses at its default."""
    written = tomllib.loads(EXAMPLE.read_text())["tcp"]
    assert set(written) == set(TcpSection.__struct_fields__)
    loaded = config_file.load(EXAMPLE).tcp
    assert loaded is not None
    assert loaded == TcpSection(listen=loaded.listen)


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:7383", "tcp://*:7383", "tcp://[::]:1", "tcp://h:1"])
def test_tcp_without_keys_is_for_the_loopback_only(url: str) -> None:
    """What other machines can reach is never open to all, even when the file says so."""
    with pytest.raises(ConfigError, match="loopback only"):
        parse(f"[tcp]\nlisten = ['{url}']\ninsecure_loopback = true")
    assert parse(f"[tcp]\nlisten = ['{url}']").tcp is not None


@pytest.mark.parametrize("url", ["ipc:///tmp/x", "tcp://1.2.3.4", "tcp://a b:1", "tcp://e;1:2:3"])
def test_only_addresses_on_tcp_are_listened_to(url: str) -> None:
    """Other transports, and what libzmq would read in its own way, are refused."""
    with pytest.raises(ConfigError, match="listen"):
        parse(f"[tcp]\nlisten = ['{url}']")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_every_loopback_will_do(host: str) -> None:
    """Any address of this machine alone."""
    section = parse(f"[http]\nhost = '{host}'").http
    assert section is not None
    assert section.url == f"http://{'[::1]' if host == '::1' else host}:8383"


def test_example_file_fits_the_published_schema() -> None:
    """Editors that know the schema find nothing to complain about in the example."""
    schema = config_schema.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(tomllib.loads(EXAMPLE.read_text()), schema)


@pytest.mark.parametrize(
    "text",
    [
        "[daemon]\npong = 1",
        "[models.a]\ntarget='t'\nx=1",
        "[models.'../a']\ntarget='t'",
        "[models.a]",
    ],
)
def test_schema_refuses_what_the_daemon_refuses(text: str) -> None:
    """A file the schema lets pass is one whose keys and names the daemon knows."""
    with pytest.raises(ConfigError):
        parse(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), config_schema.json_schema())


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
    with pytest.raises(ConfigError) as caught:
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
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_paths_count_from_the_file_and_repositories_stay() -> None:
    """``./x`` is made absolute beside the file; ``owner/name`` is left alone."""
    loaded = parse("[daemon]\nruntime_dir='run'\n[models.a]\ntarget='./w'\ndraft='z-lab/x'")
    assert loaded.runtime_dir == Path("/base/run")
    assert loaded.models["a"].target == "/base/w"
    assert loaded.models["a"].draft == "z-lab/x"


def test_a_file_without_an_end_is_refused() -> None:
    """What is too large for a configuration is not read into memory."""
    with pytest.raises(ConfigError, match="is no configuration: it is larger than"):
        config_file.load(Path("/dev/zero"))


def test_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        config_file.load(tmp_path / "gone.toml")


def test_empty_file_is_a_daemon_without_models() -> None:
    """Everything has a default."""
    assert parse("") == config.Config()


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
    with pytest.raises(ConfigError, match=r"x\.toml"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[daemon]\n\nping_interval_s = 0",
            "x.toml line 3: [daemon] ping_interval_s must be a number > 0.0, got 0",
        ),
        (
            "[models.a]\ntarget = 't'\nblock_tokens = 65",
            "x.toml line 3: [models.a] block_tokens must be an integer <= 64, got 65",
        ),
        (
            "models.a.target = 't'\nmodels.a.placement = 'f'",
            "x.toml line 2: [models.a] placement must be one of auto, strict, got 'f'",
        ),
        (
            "[models.a]\ntarget = 't'\n[models.b]\ntarget = 't'\ngroup = 'a'",
            "x.toml line 5: [models.b] group must not be the name of a model, got 'a'",
        ),
        ("\n[models.a]\n", "x.toml line 2: [models.a] target is missing, and has no default"),
        (
            "[models]\nb = {target = 't'}\na = 1",
            "x.toml line 3: [models] a must be a table, got an integer",
        ),
        (
            "[models.a]\ntarget = 't'\n[models.a.sampling]\ntop_k = 'x'",
            "x.toml line 4: [models.a.sampling] top_k must be an integer, got a string",
        ),
    ],
)
def test_wrong_value_is_named_by_line_section_and_key(text: str, sentence: str) -> None:
    """A wrong value is found without a search: line, section, key, what it must be."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value) == sentence


def test_all_problems_are_told_at_once_in_the_file_s_order() -> None:
    """Several mistakes need one look, and text in a string is not taken for a section."""
    with pytest.raises(ConfigError) as caught:
        parse("[models.a]\ndrat='d'\n[daemon]\ntext = '''\n[models.a]\n'''\npong_timeout=0\n")
    where = [told.partition(" is ")[0] for told in str(caught.value).splitlines()]
    assert where == [
        "x.toml line 1: [models.a] target",
        "x.toml line 2: [models.a] drat",
        "x.toml line 4: [daemon] text",
        "x.toml line 7: [daemon] pong_timeout",
    ]


def test_many_problems_are_cut() -> None:
    """A file of another program does not fill the terminal."""
    with pytest.raises(ConfigError) as caught:
        parse("".join(f"key{n} = 1\n" for n in range(50)))
    assert str(caught.value).splitlines()[-1] == "x.toml: and 30 more"


def test_byte_order_mark_is_accepted_and_other_encodings_are_named(tmp_path: Path) -> None:
    """UTF-8 with a mark is UTF-8; UTF-16 and Latin-1 are refused with what to do."""
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbf[models.a]\ntarget = 't'\n")
    assert set(config_file.load(file).models) == {"a"}
    file.write_text("[models.a]\n", encoding="utf-16")
    with pytest.raises(ConfigError, match=r"x\.toml is UTF-16: save it as UTF-8 text"):
        config_file.load(file)
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 at byte 5: save it as UTF-8"):
        config_file.load(file)
