"""Making the certificates of the SuperLink and the keys of the SuperNodes, as Flower needs them."""

import base64
import datetime
import hashlib
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
"""Days for which certificates are valid."""
LOOPBACKS = ("127.0.0.1", "::1")
"""Where a SuperLink that listens on all addresses (0.0.0.0, ::) is called by the programs that it
starts; without them in its certificate no run begins."""
IDENTITIES = "identities.toml"
"""Name of the file with the settings that bind client K to the key of node K."""


def make_keys(folder: Path, hosts: list[str], nodes: int) -> list[Path]:
    """Write all keys and certificates that are missing, and return the paths of the new files.

    These are a certificate authority, the server's certificate for the given hosts, one key pair
    per node, and the settings that bind each client to its node's key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if not (folder / "ca.crt").exists():
        written += make_authority(folder)
    if not (folder / "server.crt").exists():
        written += make_server_certificate(folder, hosts)
    for node in range(nodes):
        path = folder / f"node-{node}.key"
        if not path.exists():
            written += make_node_keys(path)
    return written + write_identities_file(folder)


def write_identities_file(folder: Path) -> list[Path]:
    """Write the settings that bind client K to node-K.pub; return the path if they are new."""
    pairs: list[str] = []
    while (public_path := folder / f"node-{len(pairs)}.pub").exists():
        pairs.append(f"{len(pairs)}={fingerprint_of(public_path.read_bytes())}")
    text = f'authenticated = true\nidentities = "{",".join(pairs)}"\n'
    path = folder / IDENTITIES
    if not pairs or (path.exists() and path.read_text("utf-8") == text):
        return []
    path.write_text(text, "utf-8", newline="\n")
    return [path]


def fingerprint_of(line: bytes) -> str:
    """Return the fingerprint of a public key in OpenSSH's format, as `ssh-keygen -lf` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def make_authority(folder: Path) -> list[Path]:
    """Write the key and the certificate of a new certificate authority, and return their paths."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedwmsam certificate authority")]
    )
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    certificate = sign_certificate(name, name, key.public_key(), key, constraints)
    return [
        write_private(folder / "ca.key", key),
        write_certificate(folder / "ca.crt", certificate),
    ]


def make_node_keys(path: Path) -> list[Path]:
    """Write a new private key to `path` and its public key next to it, and return both paths."""
    key = ec.generate_private_key(ec.SECP384R1())
    public_path = path.with_suffix(".pub")
    public_key = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public_path.write_bytes(public_key + b"\n")
    return [write_private(path, key), public_path]


def make_server_certificate(folder: Path, hosts: list[str]) -> list[Path]:
    """Write the server's key and certificate for these hosts, and return their paths.

    The certificate is also for this machine's own addresses.
    Raise InputError if the key of the certificate authority cannot be read.
    """
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
    all_hosts = dict.fromkeys([*hosts, *LOOPBACKS])
    names = x509.SubjectAlternativeName([alternative_name(host) for host in all_hosts])
    certificate = sign_certificate(name, authority.subject, key.public_key(), authority_key, names)
    return [
        write_private(folder / "server.key", key),
        write_certificate(folder / "server.crt", certificate),
    ]


def alternative_name(host: str) -> x509.GeneralName:
    """Return the host as a certificate names it: by its IP address or its DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def sign_certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    """Return a certificate for the subject's public key, signed with the issuer's private key."""
    now = datetime.datetime.now(datetime.UTC)
    subject_id = x509.SubjectKeyIdentifier.from_public_key(public)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=DAYS))
    builder = builder.add_extension(subject_id, critical=False)
    builder = builder.add_extension(issuer_id, critical=False)
    is_critical = isinstance(extension, x509.BasicConstraints)
    builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(key, hashes.SHA384())


def write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write a private key that only the user can read, from its first byte on, and return the path.

    Keys of nodes have the format of OpenSSH, the others PKCS #8. On Windows the folder's own
    permissions decide who can read it.
    """
    key_format = PrivateFormat.OpenSSH if path.name.startswith("node-") else PrivateFormat.PKCS8
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, key_format, NoEncryption()))
    return path


def write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    """Write a certificate and return the path."""
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
