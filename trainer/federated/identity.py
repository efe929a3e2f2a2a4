"""``mens-sup federate init``: keys and certificates, and one folder for each node.

Everything comes from the federation's own authority, which is made here and never leaves the coordinator's folder. A
node's folder holds its two private keys, so it goes to that one box and to nobody else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from supervisor.protocol.atomic import STAGING_PREFIX, fsync_directory, write_atomic

COORDINATOR = "coordinator"
NODE_FILE = "node.json"
AUTHORITY = "authority.pem"
FLEET_KEY, FLEET_PUBLIC = "fleet.key", "fleet.pub"
DELTA_KEY, DELTA_PUBLIC = "delta.key", "delta.pub"
FRONT, SUPERLINK = "front", "superlink"
VALID = datetime.timedelta(days=825)
PRIVATE, PUBLIC = 0o600, 0o644


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``node.json`` in a node's folder: who it is and where its coordinator is."""

    federation: str
    node: str
    host: str
    port: int


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def init(folder: Path, name: str, host: str, port: int, nodes: Sequence[str], train: str) -> Path:
    """Make ``folder`` with the federation's file, the coordinator's keys and one folder for each node.

    Whole or not at all. Returns the federation's file. Raises FileExistsError when there is something there already,
    whose keys must not be lost, OSError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f"{STAGING_PREFIX}{folder.name}.{os.getpid()}")
    staged.mkdir(mode=0o700)
    try:
        authority = make_authority(name)
        _coordinator(staged / COORDINATOR, authority, host)
        for node in nodes:
            _node(staged, authority, Node(name, node, host, port))
        file = staged / f"{name}.yaml"
        write_atomic(file, _federation_file(name, host, port, nodes, train).encode(), PUBLIC)
        if folder.exists():
            folder.rmdir()
        os.replace(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    fsync_directory(folder.parent)
    return folder / file.name


def make_authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject(f"{name} federation")
    certificate = (
        _builder(subject, subject, key.public_key(), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Authority(key, certificate)


def server_certificate(
    authority: Authority, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]
) -> x509.Certificate:
    """For a server that is reached under ``hosts``, names or addresses."""
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return (
        _builder(_subject(hosts[0]), authority.certificate.subject, key.public_key(), authority.key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(authority.key, hashes.SHA384())
    )


def read_delta_key(folder: Path) -> Ed25519PrivateKey:
    """A node's own. Raises OSError, ValueError."""
    key = serialization.load_pem_private_key((folder / DELTA_KEY).read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{folder / DELTA_KEY} is not an Ed25519 key")
    return key


def read_delta_public(folder: Path, node: str) -> Ed25519PublicKey:
    """A node's, from the coordinator's folder. Raises OSError, ValueError."""
    path = folder / node / DELTA_PUBLIC
    key = serialization.load_pem_public_key(path.read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{path} is not an Ed25519 key")
    return key


def _coordinator(folder: Path, authority: Authority, host: str) -> None:
    folder.mkdir(mode=0o700)
    write_atomic(folder / "authority.key", _private(authority.key), PRIVATE)
    write_atomic(folder / AUTHORITY, _certificate(authority.certificate), PUBLIC)
    # The SuperLink listens on loopback only, behind the front.
    for server, hosts in ((FRONT, [host]), (SUPERLINK, ["localhost", "127.0.0.1"])):
        key = ec.generate_private_key(ec.SECP384R1())
        write_atomic(folder / f"{server}.key", _private(key), PRIVATE)
        write_atomic(folder / f"{server}.pem", _certificate(server_certificate(authority, key, hosts)), PUBLIC)


def _node(root: Path, authority: Authority, node: Node) -> None:
    folder, known = root / node.node, root / COORDINATOR / node.node
    folder.mkdir(mode=0o700)
    known.mkdir(mode=0o700)
    # Flower reads its keys in SSH's format.
    fleet, delta = ec.generate_private_key(ec.SECP384R1()), Ed25519PrivateKey.generate()
    ssh = fleet.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomic(folder / FLEET_KEY, ssh, PRIVATE)
    fleet_public = fleet.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomic(known / FLEET_PUBLIC, fleet_public + b"\n", PUBLIC)
    write_atomic(folder / DELTA_KEY, _private(delta), PRIVATE)
    delta_public = delta.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_atomic(known / DELTA_PUBLIC, delta_public, PUBLIC)
    write_atomic(folder / AUTHORITY, _certificate(authority.certificate), PUBLIC)
    write_atomic(folder / NODE_FILE, msgspec.json.format(msgspec.json.encode(node), indent=2) + b"\n", PUBLIC)


def _federation_file(name: str, host: str, port: int, nodes: Sequence[str], train: str) -> str:
    return (
        "# A federation; every key is explained in docs/federated.md.\n"
        f"name: {name}\n"
        f'host: "{host}"\n'
        f"port: {port}\n"
        f"nodes: [{', '.join(nodes)}]\n"
        f"train: {msgspec.json.encode(train).decode()} # base, adapter and options of all nodes; data is a node's own\n"
        "rounds:\n"
        "  count: 20\n"
        "  train_seconds: 600\n"
        "  deadline_seconds: 900\n"
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """With the identifiers of both keys, without which Python accepts no certificate from 3.13 on."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks in one room differ a little
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _private(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
