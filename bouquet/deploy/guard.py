"""What keeps others out of a SuperLink and of a node's own port: secrets only an owner can read.

Flower asks for none by itself. It has an executor's secret and a check of accounts, but starts an
executor without the one, and has of the other only what asks an outside provider (ADR 30).
"""

import hmac
import itertools
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bouquet.deploy.addresses import HOST
from bouquet.deploy.certificates import make_certificates, write_secret
from bouquet.flower.private import (
    ACCESS_TOKEN_KEY,
    ACCESS_TOKEN_STORE_KEY,
    AUTHN_TYPE_STORE_KEY,
    REFRESH_TOKEN_STORE_KEY,
    AuthnType,
    FileCredentialStore,
    NoOpControlAuthnPlugin,
)
from bouquet.storage.privacy import private_folder

TOKEN = "control.token"
SECRET = "executor.secret"


def guarded_port(folder: Path) -> list[str]:
    """Words for a SuperNode whose local port serves nobody but the executor we start beside it.

    The executor shows that it knows a secret, the SuperNode that it has a key: both are made anew
    at every start, and only the owner's processes can read them.

    Parameters
    ----------
    folder : Path
        For the secret, the certificate and the key; what is in it is lost.
    """
    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    make_certificates(folder, [HOST])
    return [*_secret_words(folder), *certificate_words(folder)]


def guarded_link(folder: Path) -> list[str]:
    """Words for a SuperLink that gives work to nobody but the executor we start beside it."""
    (folder / SECRET).unlink(missing_ok=True)
    return _secret_words(folder)


def certificate_words(folder: Path) -> list[str]:
    """Words for a server with the certificate in a folder."""
    command = ["--ssl-ca-certfile", str(folder / "ca.pem")]
    command += ["--ssl-certfile", str(folder / "server.pem")]
    return [*command, "--ssl-keyfile", str(folder / "server.key")]


def _secret_words(folder: Path) -> list[str]:
    write_secret(folder / SECRET, secrets.token_bytes(32))
    # Flower looks at the secret only where it does not start the executor itself.
    return ["--isolation", "process", "--superexec-auth-secret-file", str(folder / SECRET)]


def executor_command(words: Sequence[str]) -> list[str]:
    """How to start the executor of a SuperLink or SuperNode; empty if it does so itself."""
    said = dict(itertools.pairwise(words))
    if "--superexec-auth-secret-file" not in said:
        return []
    address = reached_at(f"{said['--host']}:{said['--port']}")
    command = ["flower-superexec", "--runtime-api-address", address]
    command += ["--root-certificates", said["--ssl-ca-certfile"]]
    return [*command, "--superexec-auth-secret-file", said["--superexec-auth-secret-file"]]


def reached_at(address: str) -> str:
    """Where this machine reaches what listens at an address, by a name that is certified."""
    host, _, port = address.rpartition(":")
    return f"{HOST}:{port}" if host == "0.0.0.0" else address


def control_token(folder: Path) -> str:
    """What a SuperLink's owner shows to start runs and to let nodes in; made the first time."""
    path = folder / TOKEN
    if not path.exists():
        write_secret(path, secrets.token_hex(32).encode())
    return path.read_text("utf-8").strip()


def hand_over(token: str, home: Path, address: str) -> None:
    """Have ``flwr`` show the token to a SuperLink, as it shows those of a login.

    Parameters
    ----------
    token : str
        What to show.
    home : Path
        The command's ``FLWR_HOME``.
    address : str
        The SuperLink, as the connection in ``home`` names it.
    """
    store = FileCredentialStore(home / "credentials.yaml")
    store.set(AUTHN_TYPE_STORE_KEY % address, AuthnType.OIDC.encode())
    for key in (ACCESS_TOKEN_STORE_KEY, REFRESH_TOKEN_STORE_KEY):
        store.set(key % address, token.encode())


class TokenCheck(NoOpControlAuthnPlugin):
    """Flower's check of accounts, of which there is one: whoever has the token.

    Parameters
    ----------
    token : str
        The owner's.
    """

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, Any]:
        """Whether a request shows the token, and whose it is."""
        shown = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            return False, None
        valid, account = super().validate_tokens_in_metadata(metadata)
        return bool(valid), account

    def refresh_tokens(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, Any]:
        """No token but the owner's, and that one does not change."""
        return None, None


class ShowToken:
    """Shows the token with every request of a client of ours."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the token to a request."""
        context.request.headers["Authorization"] = f"Bearer {self._token}"
        return call_next(context)
