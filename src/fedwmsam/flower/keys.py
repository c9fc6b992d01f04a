"""Certificates for the SuperLink and keys for the SuperNodes, as Flower wants them."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedwmsam.errors import InputError

DAYS = 730
"""For which certificates are valid."""


def make_keys(folder: Path, hosts: list[str], nodes: int) -> list[Path]:
    """A certificate authority, the server's certificate for these hosts, a key pair for each node; none is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if not (folder / "ca.crt").exists():
        key = ec.generate_private_key(ec.SECP384R1())
        name = x509.Name(
            [x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedwmsam certificate authority")]
        )
        authority = signed(
            name, name, key.public_key(), key, x509.BasicConstraints(ca=True, path_length=0)
        )
        written += [
            write_private(folder / "ca.key", key),
            write_certificate(folder / "ca.crt", authority),
        ]
    if not (folder / "server.crt").exists():
        written += make_server_certificate(folder, hosts)
    for node in range(nodes):
        private = folder / f"node-{node}.key"
        if not private.exists():
            key, public = ec.generate_private_key(ec.SECP384R1()), private.with_suffix(".pub")
            public.write_bytes(
                key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
            )
            written += [write_private(private, key), public]
    return written


def make_server_certificate(folder: Path, hosts: list[str]) -> list[Path]:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    try:
        authority_key = serialization.load_pem_private_key(
            (folder / "ca.key").read_bytes(), password=None
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/ca.key is needed to make server.crt: {error}.") from error
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    names = x509.SubjectAlternativeName([alternative_name(host) for host in hosts])
    certificate = signed(name, authority.subject, key.public_key(), authority_key, names)
    return [
        write_private(folder / "server.key", key),
        write_certificate(folder / "server.crt", certificate),
    ]


def alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def signed(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
        now - datetime.timedelta(hours=1)
    )
    builder = builder.not_valid_after(now + datetime.timedelta(days=DAYS))
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(public), critical=False
    )
    builder = builder.add_extension(identifier, critical=False)
    return builder.add_extension(
        extension, critical=isinstance(extension, x509.BasicConstraints)
    ).sign(key, hashes.SHA384())


def write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Readable by nobody else from the first byte on. Nodes' keys are OpenSSH's, the others PEM."""
    form = PrivateFormat.OpenSSH if path.name.startswith("node-") else PrivateFormat.PKCS8
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return path


def write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
