"""A certificate authority, a server's certificate and nodes' keys, for one deployment."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from bouquet.core.errors import BadInput

DAYS = 825  # of a server's certificate: the most that common TLS libraries accept
CA_DAYS = 3650  # every device has a copy of the authority's


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write an authority, ``ca.pem`` and ``ca.key``, and what it certifies; see :func:`certify`.

    Parameters
    ----------
    folder : Path
        A private one.
    hosts : sequence of str
        Names and addresses by which the server is reached.
    """
    authority, issuer = _new_key(), _name("Bouquet")
    ca = (
        _certificate(issuer, issuer, authority, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_may_sign(), critical=True)
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    write_secret(folder / "ca.key", _private(authority))
    certify(folder, hosts, folder / "ca.key")


def renew(folder: Path, hosts: Sequence[str], ca_key: Path) -> list[str]:
    """Write a new ``server.pem`` and ``server.key`` of the same authority, which devices know.

    Parameters
    ----------
    folder : Path
        Of the SuperLink.
    hosts : sequence of str
        Names and addresses by which the server is reached; empty for those it has.
    ca_key : Path
        The authority's key.

    Returns
    -------
    list of str
        What is certified.
    """
    if not ca_key.exists():
        raise BadInput(
            f"{ca_key} is not there: without the authority's key there is no new certificate "
            "that devices would trust. Say where it is kept with --ca-key."
        )
    names = list(hosts) or _hosts(folder / "server.pem")
    certify(folder, names, ca_key)
    return names


def certify(folder: Path, hosts: Sequence[str], ca_key: Path) -> None:
    """Write a ``server.pem`` with a new ``server.key``, signed by the folder's authority."""
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    authority = load_pem_private_key(ca_key.read_bytes(), None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey) or (
        authority.public_key() != ca.public_key()
    ):
        raise BadInput(f"{ca_key} is not the key of {folder / 'ca.pem'}.")
    server, issuer, subject = _new_key(), ca.subject, _name(hosts[0])
    certificate = (
        _certificate(subject, issuer, server, DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alias(host) for host in hosts]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
        )
        .sign(authority, hashes.SHA256())
    )
    (folder / "server.key").unlink(missing_ok=True)
    write_secret(folder / "server.key", _private(server))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def make_node_key(path: Path) -> None:
    """Write a node's private key, and beside it ``.pub``, which the SuperLink is to know."""
    key = _new_key()
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _hosts(certificate: Path) -> list[str]:
    """What a certificate is for."""
    known = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(word: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _may_sign() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _alias(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
