"""All settings of a server, read from arguments, a file and the environment.

Each setting is declared once, here or in `GuardSettings`. All parts of a server share one
`ServeSettings` object.
"""

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
from bitta.server.collapse_detector import GuardSettings

PREFIX = "BITTA_SERVE_"
"""Prefix of environment variables. Two underscores separate a group and its setting, as in
BITTA_SERVE_LIMITS__PIXELS."""

LEARNER_SETTINGS = (
    "method", "preset", "settings", "window", "n_queries", "audits", "max_distance", "seed",
)  # fmt: skip
"""Names of the settings that a replay needs."""

Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Function from the given settings to defaults of the others."""


class RequestLimits(BaseModel):
    """Limits of requests, keys and connections."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    body_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Bytes of an inference request's body, before and after decompression."""
    other_body_bytes: int = Field(default=256 * 1024, ge=1024)
    """Bytes of any other request's body."""
    json_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Bytes of an inference request's JSON. Parsed JSON takes about 25 times as much memory."""
    images: int = Field(default=128, ge=1)
    """Images in one request."""
    image_bytes: int = Field(default=16 * 2**20, ge=1)
    """Bytes of one encoded image."""
    pixels: int = Field(default=25_000_000, ge=1)
    """Pixels of one encoded image, also while it is resized."""
    request_pixels: int = Field(default=100_000_000, ge=1)
    """Pixels of all encoded images of one request."""
    requests_per_second: float = Field(default=2000.0, gt=0, allow_inf_nan=False)
    """Average requests per second of one key."""
    burst: int = Field(default=4000, ge=1)
    """Requests that one key may send at once."""
    invalid_keys_per_minute: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Invalid keys per minute from one address."""
    read_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds that a client may take to send its request, or to read a part of the response."""
    response_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds that a request may wait for the model or the store. Then it gets status 504."""
    max_connections: int = Field(default=1000, ge=1)
    """Largest number of open connections."""
    max_event_streams: int = Field(default=100, ge=1)
    """Largest number of open event streams."""


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
    """Weights file with a model card, or "module:factory" that returns an nn.Module."""
    input_shape: tuple[int, int, int] | None = None
    """Channels, height and width of an image, if the model's card has none."""
    classes: Path | None = None
    """File with one class name per line, if the model's card has none."""
    database: str | None = None
    """URL of the database; by default SQLite in the data folder."""
    data_dir: Path = Path("bitta-data")
    """Folder for the database, snapshots and images."""
    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""
    tls_cert: Path | None = None
    """Certificate chain in PEM format; needs tls_key."""
    tls_key: Path | None = None
    """Private key in PEM format; needs tls_cert."""
    tls_key_password: SecretStr | None = Field(default=None, min_length=1, max_length=1000)
    """Password of the private key. Give it in the file or the environment: other users of the
    machine can see arguments."""
    tls_client_ca: Path | None = None
    """Certificates of the authorities that sign clients' certificates, in PEM format. If given,
    every client needs a signed certificate, health probes too."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. "warning" leaves out successful requests."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers."""

    method: str = "bitta"
    """Adaptation method; "bitta methods" lists them."""
    preset: str | None = None
    """Preset of the method: a named set of its settings."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method. They override those of the preset."""

    max_batch: int = Field(default=64, ge=1, le=4096)
    """Largest number of images in one forward pass. A larger request is served alone."""
    max_wait_ms: float = Field(default=2.0, ge=0, le=10_000)
    """Milliseconds that a request waits for others to join its forward pass. It waits only if the
    last forward pass combined several requests."""
    max_queued_images: int = Field(default=4096, ge=1)
    """Largest number of images that wait to be served, and of predictions that wait to be stored.
    Further requests are refused."""
    window: int = Field(default=64, ge=2)
    """Number of served images after which questions are asked and a learning step is due."""
    n_queries: int = Field(default=3, ge=0)
    """Number of questions per window."""
    audits: int = Field(default=1, ge=0)
    """Number of questions per window about random samples, which measure accuracy."""
    duty: float = Field(default=0.5, gt=0, le=1)
    """Largest share of the worker's time for asking and learning. Above it, learning waits, and
    only one window per learning step asks questions."""
    max_distance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Largest distance of the weights from the source weights, relative to the norm of the source
    weights. Weights beyond it are moved back; 0 for no limit."""
    rollback: bool = True
    """True if the server rolls back by itself when the model collapses. The status shows a collapse
    in any case."""
    question_seconds: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """Seconds for which a question stays open."""
    max_open_questions: int = Field(default=30, ge=1)
    """Limit of open questions from the last minute. At the limit, the server asks no more."""
    lease_seconds: float = Field(default=120.0, gt=0, le=86_400)
    """Seconds for which a question is reserved for the annotator who received it."""
    overlap: int = Field(default=1, ge=1)
    """Number of annotators who are asked the same question."""
    max_poll_seconds: float = Field(default=25.0, ge=0, le=25)
    """Longest time in seconds that a request for the next question waits."""

    keep_images: Literal["none", "queried", "all"] = "queried"
    """Images that are kept on disk. A replay of the log needs "all". With "none", answers that
    arrive late or after a restart cannot be used."""
    recent_bytes: int = Field(default=256 * 2**20, ge=0)
    """Bytes of memory for the inputs of the newest predictions, which answers refer to."""
    snapshot_steps: int = Field(default=20, ge=1)
    """Number of learning steps after which a snapshot is taken."""
    snapshot_seconds: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds after which a snapshot is taken, if there was a learning step."""
    keep_snapshots: int = Field(default=20, ge=1)
    """Number of periodic snapshots kept on disk. The source, requested snapshots and those of
    rollbacks are always kept."""

    session_hours: float = Field(default=12.0, gt=0, le=24 * 365)
    """Hours for which a sign-in on the pages lasts."""
    status_seconds: float = Field(default=2.0, gt=0, le=60)
    """Seconds between two status events of an event stream."""
    shutdown_seconds: int = Field(default=10, ge=1)
    """Seconds that running requests may take after the server is asked to stop."""

    limits: RequestLimits = RequestLimits()
    """Limits of requests, keys and connections."""
    guard: GuardSettings = GuardSettings()
    """Detection of collapse."""

    @property
    def has_tls(self) -> bool:
        """True if this server encrypts connections."""
        return self.tls_cert is not None

    def learner_settings(self) -> dict[str, Any]:
        """Return the settings that a replay needs, as plain values for the log."""
        return {name: getattr(self, name) for name in LEARNER_SETTINGS}

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"{missing} is missing; give both tls_cert and tls_key, or neither")
        for name in ("tls_key_password", "tls_client_ca"):
            if getattr(self, name) is not None and not self.has_tls:
                raise ValueError(f"{name} needs tls_cert and tls_key")
        if self.audits > self.n_queries:
            raise ValueError(
                f"audits is {self.audits}, more than the {self.n_queries} questions of a window"
            )
        if self.method == "self_tuning":
            raise ValueError(
                "method is 'self_tuning', which needs paired audits, and the server does not ask "
                "them yet; use 'bitta'"
            )
        if self.n_queries > self.window:
            raise ValueError(
                f"n_queries is {self.n_queries}, more than the {self.window} images of a window"
            )
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
        # `load_settings` has merged all sources already, with its own error messages.
        return (init_settings,)


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: Defaults | None = None,
) -> ServeSettings:
    """Load settings: arguments override the file, which overrides the environment.

    An argument of None counts as not given. `defaults` receives the given settings and returns
    defaults for the others.
    """
    given: dict[str, Any] = {}
    _merge(given, _from_environment(os.environ if environment is None else environment))
    if config is not None:
        _merge(given, _from_file(config))
    _merge(given, {name: value for name, value in (arguments or {}).items() if value is not None})
    if defaults is not None:
        merged: dict[str, Any] = {}
        _merge(merged, defaults(given))
        _merge(merged, given)
        given = merged
    try:
        return ServeSettings(**given)
    except ValidationError as error:
        raise _setting_error(error) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the variables with our prefix. Refuse unknown names."""
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
    except SettingsError as error:  # invalid JSON
        raise SettingError(f"the environment ({PREFIX}...) cannot be read: {error}.") from None
    if "settings" in given:
        given["settings"] = {name: _parse_value(text) for name, text in given["settings"].items()}
    return given


def _parse_value(text: Any) -> Any:
    """Parse a setting of a method, whose type is unknown here. Text that is not JSON stays text."""
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


def _merge(target: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Override values in place, group by group."""
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = dict(value) if isinstance(value, Mapping) else value


def _setting_error(error: ValidationError) -> SettingError:
    """Return an error message for the first invalid setting."""
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
        prefix = "".join(f"{part}." for part in path)
        return SettingError(f"{prefix}{first['ctx']['error']}".rstrip(".") + ".")
    message = first["msg"]
    given = "not shown" if path[-1] == "tls_key_password" else repr(first["input"])
    return SettingError(f"{'.'.join(path)} is {given}; {message[0].lower()}{message[1:]}.")
