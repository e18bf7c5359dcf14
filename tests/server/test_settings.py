"""Settings from arguments, file and environment, and errors about them."""

import os
import re
from pathlib import Path

import pytest

from bitta.config_base import describe_settings
from bitta.errors import SettingError
from bitta.server.collapse_detector import GuardSettings
from bitta.server.settings import RequestLimits, ServeSettings, load_settings


def test_arguments_override_file_and_file_overrides_environment(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 2\nhost = "file"\n[limits]\nburst = 20\n')
    environment = {
        "BITTA_SERVE_PORT": "1",
        "BITTA_SERVE_HOST": "environment",
        "BITTA_SERVE_MODEL": "environment",
        "BITTA_SERVE_LIMITS__BURST": "10",
        "BITTA_SERVE_LIMITS__PIXELS": "11",
        "bitta_serve_guard__patience": "7",
    }
    made = load_settings({"port": 3, "host": None}, config=file, environment=environment)
    assert (made.port, made.host, made.model) == (3, "file", "environment")
    assert (made.limits.burst, made.limits.pixels) == (20, 11)
    assert made.guard.patience == 7


def test_method_settings_from_environment_are_parsed_as_json():
    environment = {"BITTA_SERVE_SETTINGS__LR": "0.1", "BITTA_SERVE_SETTINGS__NAME": "x y"}
    assert load_settings(environment=environment).settings == {"lr": 0.1, "name": "x y"}


def test_environment_of_the_process_is_read(monkeypatch):
    for name in [name for name in os.environ if name.startswith("BITTA_SERVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BITTA_SERVE_PORT", "81")
    assert load_settings().port == 81


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prot": 1}, "unknown setting 'prot'; did you mean 'port'?"),
        ({"limits": {"brst": 1}}, "unknown setting 'brst' of limits; did you mean 'burst'?"),
        ({"guard": {"patence": 1}}, "unknown setting 'patence' of guard; did you mean 'patience'?"),
        ({"guard": {"patience": 0}}, "guard.patience is 0; allowed: 1 or more."),
        ({"port": 70000}, "port is 70000; input should be less than or equal to 65535."),
        ({"duty": "all"}, "duty is 'all'; input should be a valid number"),
        ({"keep_images": "some"}, "keep_images is 'some'; input should be 'none', 'queried' or"),
        ({"tls_cert": "x"}, "tls_key is missing; give both tls_cert and tls_key, or neither."),
        ({"tls_client_ca": "x"}, "tls_client_ca needs tls_cert and tls_key."),
        ({"tls_key_password": 4711}, "tls_key_password is not shown; input should be a valid"),
        ({"audits": 9}, "audits is 9, more than the 3 questions of a window."),
        ({"n_queries": 65}, "n_queries is 65, more than the 64 images of a window."),
        ({"limits": {"burst": 0}}, "limits.burst is 0; input should be greater than or equal to 1"),
    ],
)
def test_invalid_setting_raises_one_sentence(given, sentence):
    with pytest.raises(SettingError, match=re.escape(sentence)) as caught:
        load_settings(given, environment={})
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip("?").count("..") == 0


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"BITTA_SERVE_PROT": "1"}, "did you mean 'BITTA_SERVE_PORT'?"),
        ({"BITTA_SERVE_PORT": "x"}, "port is 'x'"),
        ({"BITTA_SERVE_LIMITS": "{"}, "the environment (BITTA_SERVE_...) cannot be read"),
    ],
)
def test_invalid_environment_raises_one_sentence(environment, sentence):
    with pytest.raises(SettingError, match=re.escape(sentence)):
        load_settings(environment=environment)


def test_invalid_file_raises_one_sentence(tmp_path):
    with pytest.raises(SettingError, match="cannot be read: No such file"):
        load_settings(config=tmp_path / "none.toml", environment={})
    (tmp_path / "bad.toml").write_text("port =")
    with pytest.raises(SettingError, match="is not TOML"):
        load_settings(config=tmp_path / "bad.toml", environment={})


def test_password_is_not_in_repr_or_dump():
    given = {"tls_cert": "c", "tls_key": "k"}
    environment = {"BITTA_SERVE_TLS_KEY_PASSWORD": "geheim"}
    made = load_settings(given, environment=environment)
    assert made.tls_key_password.get_secret_value() == "geheim"
    assert "geheim" not in f"{made!r} {made} {made.model_dump()}"


@pytest.mark.parametrize("kind", [ServeSettings, RequestLimits])
def test_every_setting_is_described(kind):
    for name, field in kind.model_fields.items():
        assert (field.description or "").endswith("."), name


def test_every_setting_is_on_the_page_of_settings_with_its_default_and_meaning():
    page = Path(__file__).parents[2] / "docs" / "reference" / "server-settings.md"
    rows = {
        name.strip(" `"): (default.strip(" `"), meaning.strip())
        for _, name, default, meaning, _ in (
            line.split("|") for line in page.read_text().splitlines() if line.startswith("| `")
        )
    }
    expected = {
        f"guard.{setting.name}": (str(setting.default), setting.meaning)
        for setting in describe_settings(GuardSettings)
    }
    for prefix, kind in (("", ServeSettings), ("limits.", RequestLimits)):
        for name, field in kind.model_fields.items():
            if name not in {"limits", "guard"}:
                default = field.get_default(call_default_factory=True)
                expected[prefix + name] = ("" if default in (None, {}) else str(default),
                                           " ".join(field.description.split()))  # fmt: skip
    assert rows == expected
