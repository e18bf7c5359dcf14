"""Certificates and keys: tried before anything is begun, then given to uvicorn."""

import ssl
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.server.settings import ServeSettings


def tls_options(settings: ServeSettings) -> dict[str, Any]:
    """As uvicorn names them."""
    ca = settings.tls_client_ca
    return {
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "ssl_keyfile_password": _password(settings),
        "ssl_ca_certs": None if ca is None else str(ca),
        "ssl_cert_reqs": ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED,
    }


def check_tls(settings: ServeSettings) -> None:
    """Look whether certificate, key and password can be read and belong together."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        _check_readable(name, getattr(settings, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_chain(context, settings.tls_cert, settings.tls_key, _password(settings))
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except ssl.SSLError as error:
            raise InputError(
                f"tls_client_ca {str(settings.tls_client_ca)!r} cannot be used: it holds no "
                f"certificates in PEM ({error.reason or error})."
            ) from None


def _check_readable(name: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.open("rb").close()
    except OSError as error:
        raise InputError(f"{name} {str(path)!r} cannot be used: {error.strerror}.") from None


def _check_chain(context: ssl.SSLContext, cert: Path, key: Path, password: str | None) -> None:
    asked = False

    def told() -> str:  # without it OpenSSL would ask at the terminal
        nonlocal asked
        asked = True
        return password or ""

    try:
        context.load_cert_chain(cert, key, told)
    except ssl.SSLError as error:
        if asked and password is None:
            reason = "the key is encrypted; give tls_key_password in the file or the environment"
        elif asked:
            reason = "tls_key_password does not open the key"
        elif error.reason == "KEY_VALUES_MISMATCH":
            reason = "the key is not that of the certificate"
        else:
            reason = f"they are no certificate and key in PEM ({error.reason or error})"
        raise InputError(
            f"tls_cert {str(cert)!r} and tls_key {str(key)!r} cannot be used: {reason}."
        ) from None


def _password(settings: ServeSettings) -> str | None:
    secret = settings.tls_key_password
    return None if secret is None else secret.get_secret_value()
