"""Everything about a server that can be set: by arguments, by a file, by the environment."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from bitta.errors import SettingError, unknown_name_error
from bitta.server.guard import GuardSettings

PREFIX = "BITTA_SERVE_"
"""What the names of environment variables begin with; parts of a group are told by two strokes,
as in BITTA_SERVE_LIMITS__PIXELS."""


Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RequestLimits(BaseModel):
    """What one caller may ask of the server."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    body_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Bytes of an inference request's body, as sent and again after decompression."""
    other_bytes: int = Field(default=256 * 1024, ge=1024)
    """Bytes of any other request's body."""
    json_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Bytes of an inference request's JSON, which takes far more once it is read."""
    images: int = Field(default=128, ge=1)
    """Images in one request."""
    picture_bytes: int = Field(default=16 * 2**20, ge=1)
    """Bytes of one encoded picture."""
    pixels: int = Field(default=25_000_000, ge=1)
    """Pixels of one encoded picture."""
    request_pixels: int = Field(default=100_000_000, ge=1)
    """Pixels of all encoded pictures of one request."""
    requests_per_second: float = Field(default=2000.0, gt=0, allow_inf_nan=False)
    """Requests per second that one key may make for long."""
    burst: int = Field(default=4000, ge=1)
    """Requests that one key may make at once."""
    failures_per_minute: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Wrong keys per minute from one address."""
    read_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """How long a client may take to send its request, or to take a part of the answer."""
    answer_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """How long a request may wait for the model before it is told to come back later."""
    connections: int = Field(default=1000, ge=1)
    """Connections open at the same time."""
    streams: int = Field(default=100, ge=1)
    """Event streams open at the same time."""


class ServeSettings(BaseSettings):
    """Settings of a server."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=False,
        protected_namespaces=(),
    )

    model: str = ""
    """Weights with a card, or "module:factory" for a function that returns any nn.Module."""
    input_shape: tuple[int, int, int] | None = None
    """Channels, height and width of an image, where the model does not tell them itself."""
    classes: Path | None = None
    """A file with one class name per line, where the model does not tell them itself."""
    database: str | None = None
    """URL of the database; SQLite in the data folder where none is given."""
    data_dir: Path = Path("bitta-data")
    """Folder for the database, snapshots and images."""
    host: str = "127.0.0.1"
    """Address to listen at; the default is reached from this machine alone."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen at; 0 takes a free one."""
    tls_cert: Path | None = None
    """Certificate chain in PEM; needs tls_key."""
    tls_key: Path | None = None
    """Private key in PEM; needs tls_cert."""
    tls_key_password: SecretStr | None = Field(default=None, min_length=1, max_length=1000)
    """Password of the private key; in the file or the environment alone, as arguments are seen by
    everybody on the machine."""
    tls_client_ca: Path | None = None
    """Certificates in PEM; where given, every client has to show a certificate signed by one of
    them, probes of its health too."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious lines that are logged; "warning" leaves out requests that went well."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything that is left to chance."""

    method: str = "bitta"
    """How the model learns; "bitta methods" lists them."""
    preset: str | None = None
    """Named settings of the method."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method, over those of its preset."""

    max_batch: int = Field(default=64, ge=1, le=4096)
    """Most images served by one pass of the model."""
    max_wait_ms: float = Field(default=2.0, ge=0, le=10_000)
    """How long a request may wait for others to share its pass, where the last one was shared."""
    max_waiting: int = Field(default=4096, ge=1)
    """Images that may wait to be served, and predictions to be stored; a request beyond is
    refused."""
    window: int = Field(default=64, ge=2)
    """Served images after which questions and a learning step are due."""
    n_queries: int = Field(default=3, ge=0)
    """Questions per window."""
    audits: int = Field(default=1, ge=0)
    """How many of a window's questions are drawn at random, to measure accuracy."""
    duty: float = Field(default=0.5, gt=0, le=1)
    """Share of the worker's time that asking and learning may take; until it may learn again, one
    window asks."""
    max_distance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How far the weights may move from the source's, relative to their length, before they are
    drawn back; 0 for any."""
    rollback: bool = True
    """Whether the server goes back by itself when the model collapses; it is told in any case."""
    question_seconds: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """How long a question stays open."""
    max_open: int = Field(default=30, ge=1)
    """Questions of the last minute that may wait; while as many do, windows raise no more."""
    lease_seconds: float = Field(default=120.0, gt=0, le=86_400)
    """How long a question is kept for the annotator who was given it."""
    overlap: int = Field(default=1, ge=1)
    """How many annotators are asked the same question."""
    wait_seconds: float = Field(default=25.0, ge=0, le=25)
    """Longest wait of a request for the next question."""

    keep_images: Literal["none", "queried", "all"] = "queried"
    """Which images are kept on disk; replay of the log needs all."""
    recent_bytes: int = Field(default=256 * 2**20, ge=0)
    """Memory for the inputs of the newest predictions, which answers may be about."""
    snapshot_steps: int = Field(default=20, ge=1)
    """Learning steps after which a snapshot is taken."""
    snapshot_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds after which a snapshot is taken, if something was learned."""
    keep_snapshots: int = Field(default=20, ge=1)
    """Snapshots kept on disk, beside the source."""

    session_hours: float = Field(default=12.0, gt=0, le=24 * 365)
    """How long a sign-in on the pages lasts."""
    status_seconds: float = Field(default=2.0, gt=0, le=60)
    """How often event streams tell the status."""
    shutdown_seconds: int = Field(default=10, ge=1)
    """How long requests under way may take once the server is asked to stop."""

    limits: RequestLimits = RequestLimits()
    """What one caller may ask."""
    guard: GuardSettings = GuardSettings()
    """When the model counts as collapsed."""

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted by this server."""
        return self.tls_cert is not None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are given together or not at all")
        for name in ("tls_key_password", "tls_client_ca"):
            if getattr(self, name) is not None and not self.tls:
                raise ValueError(f"{name} needs tls_cert and tls_key")
        if self.audits > self.n_queries:
            raise ValueError(
                f"audits is {self.audits}, more than the {self.n_queries} questions of a window"
            )
        if self.n_queries > self.window:
            raise ValueError(f"n_queries is {self.n_queries}, more than a window of {self.window}")
        return self

    @classmethod
    def settings_customise_sources(  # noqa: D102
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load_settings` has put the sources over one another, with errors in our own words.
        return (init_settings,)


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: Defaults | None = None,
) -> ServeSettings:
    """Arguments over the file over the environment over other defaults than our own.

    None among the arguments is not given; `defaults` makes its own of what is given.
    """
    given: dict[str, Any] = {}
    _merge(given, _from_environment(os.environ if environment is None else environment))
    if config is not None:
        _merge(given, _from_file(config))
    _merge(given, {name: value for name, value in (arguments or {}).items() if value is not None})
    if defaults is not None:
        beneath: dict[str, Any] = {}
        _merge(beneath, defaults(given))
        _merge(beneath, given)
        given = beneath
    try:
        return ServeSettings(**given)
    except ValidationError as error:
        raise _sentence(error) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The variables with our prefix; a name that no setting has is refused."""
    names = {name.lower(): text for name, text in environment.items()}
    for name in names:
        if name.startswith(PREFIX.lower()):
            setting = name.removeprefix(PREFIX.lower()).partition("__")[0]
            if setting not in ServeSettings.model_fields:
                raise unknown_name_error(
                    "environment variable",
                    name.upper(),
                    [PREFIX + known.upper() for known in ServeSettings.model_fields],
                )
    source = EnvSettingsSource(ServeSettings)
    source.env_vars = names
    try:
        given = source()
    except SettingsError as error:  # text that should have been JSON
        raise SettingError(f"the environment ({PREFIX}...) cannot be read: {error}.") from None
    if "settings" in given:
        given["settings"] = {name: _value(text) for name, text in given["settings"].items()}
    return given


def _value(text: Any) -> Any:
    """A setting of a method says nothing about its type here: a number where it reads as one."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingError(f"the settings file {str(path)!r} cannot be read: {reason}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"the settings file {str(path)!r} is not TOML: {error}.") from None


def _merge(under: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Put values over others, group by group."""
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(name), dict):
            _merge(under[name], value)
        else:
            under[name] = dict(value) if isinstance(value, Mapping) else value


def _sentence(error: ValidationError) -> SettingError:
    """The first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        groups = {
            "limits": list(RequestLimits.model_fields),
            "guard": [f.name for f in fields(GuardSettings)],
        }
        known = groups.get(path[0], list(ServeSettings.model_fields))
        return unknown_name_error("setting", path[-1], known, of=".".join(path[:-1]))
    if first["type"] == "value_error":
        place = "".join(f"{part}." for part in path)
        return SettingError(f"{place}{first['ctx']['error']}".rstrip(".") + ".")
    message = first["msg"]
    given = "not shown" if path[-1] == "tls_key_password" else repr(first["input"])
    return SettingError(f"{'.'.join(path)} is {given}; {message[0].lower()}{message[1:]}.")
