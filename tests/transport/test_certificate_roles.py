"""Roles by certificate: the grammar of the rules, names that match, and use by peers."""

from __future__ import annotations

import datetime
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ValidationError

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import ROLE_CONSUMER, ROLE_DRIVER, ROLE_PEER, ROLE_PRODUCER
from sluice.transport.certificate_roles import (
    ROLES,
    CertificateRefused,
    parse_rule,
    permits,
    read_names,
)
from sluice.transport.config import TransportConfig

KEY = ec.generate_private_key(ec.SECP256R1())
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
ANY = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE
START = datetime.datetime(2026, 1, 1)


def a_certificate(
    *names: x509.GeneralName,
    common_names: tuple[str, ...] = (),
    uses: tuple[x509.ObjectIdentifier, ...] | None = (SERVER, CLIENT),
    extensions: tuple[x509.ExtensionType, ...] = (),
) -> bytes:
    """Return a certificate in DER form."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn) for cn in common_names])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(START)
        .not_valid_after(START + datetime.timedelta(days=9))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if uses is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


DNS, URI, EMAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name
cert = a_certificate


def cn(*common_names: str) -> bytes:
    return a_certificate(common_names=common_names)


def ip(text: str) -> x509.IPAddress:
    return x509.IPAddress(ipaddress.ip_address(text))


# ---- rules and names ---------------------------------------------------------------------------

MATCHES: list[tuple[str, bytes, int, str, bool]] = [
    ("peer = DNS:tm*.example", cert(DNS("tm1.example")), ROLE_PEER, "", True),
    ("peer = DNS:TM*.Example", cert(DNS("tm1.EXAMPLE")), ROLE_PEER, "", True),
    ("peer = DNS:tm*.example", cert(DNS("x.example")), ROLE_PEER, "", False),
    # A pattern is for the whole name, not for a part of it.
    ("peer = DNS:tm1", cert(DNS("tm1.evil.example")), ROLE_PEER, "", False),
    ("peer = DNS:tm?", cert(DNS("tm12")), ROLE_PEER, "", False),
    ("peer = DNS:tm[12]", cert(DNS("tm2")), ROLE_PEER, "", True),
    # A name counts as the kind that it is, and a rule as the roles that it has.
    ("peer = DNS:tm1", cn("tm1"), ROLE_PEER, "", False),
    ("peer = CN:tm1", cert(DNS("tm1")), ROLE_PEER, "", False),
    ("driver = DNS:tm1", cert(DNS("tm1")), ROLE_PEER, "", False),
    ("driver, peer = DNS:tm1", cert(DNS("tm1")), ROLE_PEER, "", True),
    # Any name of a certificate will do.
    ("peer = DNS:tm1", cert(DNS("a"), ip("10.0.0.1"), DNS("tm1")), ROLE_PEER, "", True),
    ("producer = CN:b", cn("a", "b"), ROLE_PRODUCER, "app", True),
    ("producer = CN:etl-*", cn("etl-7"), ROLE_PRODUCER, "app", True),
    ("producer = CN:etl-*", cn("ETL-7"), ROLE_PRODUCER, "app", False),
    ("producer = CN:etl, of = it", cn("etl, of = it"), ROLE_PRODUCER, "a", True),
    ("consumer = IP:10.0.0.7", cert(ip("10.0.0.7")), ROLE_CONSUMER, "app", True),
    ("consumer = IP:10.0.0.*", cert(ip("10.0.0.77")), ROLE_CONSUMER, "app", True),
    ("consumer = IP:10.0.0.7", cert(ip("10.0.0.77")), ROLE_CONSUMER, "app", False),
    ("consumer = IP:FD00:0::7", cert(ip("fd00::7")), ROLE_CONSUMER, "app", True),
    ("consumer = IP:10.0.0.7", cert(DNS("10.0.0.7")), ROLE_CONSUMER, "app", False),
    ("driver = URI:uri:/etl/*", cert(URI("uri:/etl/x/y")), ROLE_DRIVER, "app", True),
    ("driver = URI:uri:/etl/*", cert(URI("uri:/ETL/x")), ROLE_DRIVER, "app", False),
    ("driver = email:*@example.org", cert(EMAIL("a@example.org")), ROLE_DRIVER, "app", True),
    ("driver of etl-* = CN:e", cn("e"), ROLE_DRIVER, "etl-7", True),
    ("driver of etl-* = CN:e", cn("e"), ROLE_DRIVER, "my-etl-7", False),
    ("driver of etl-* = CN:e", cn("e"), ROLE_DRIVER, "ETL-7", False),
    ("driver of etl-* = CN:e", cn("e"), ROLE_PRODUCER, "etl-7", False),
    ("peer = DNS:*", cert(), ROLE_PEER, "", False),
]


@pytest.mark.parametrize(
    ("rule", "certificate", "role", "application_id", "allowed"),
    MATCHES,
    ids=lambda value: "certificate" if isinstance(value, bytes) else None,  # signed anew each time
)
def test_a_rule_allows_the_names_that_it_matches(
    rule: str, certificate: bytes, role: int, application_id: str, allowed: bool
) -> None:
    refusal = permits(certificate, role, application_id, [rule])
    assert (refusal is None) == allowed
    # Another rule beside it changes nothing, before or behind it.
    other = "peer, driver, producer, consumer = CN:nobody"
    assert (permits(certificate, role, application_id, [rule, other]) is None) == allowed
    assert (permits(certificate, role, application_id, [other, rule]) is None) == allowed


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_without_rules_a_trusted_certificate_has_any_role(role: int) -> None:
    assert permits(a_certificate(DNS("a")), role, "app") is None
    assert permits(None, role, "app") is None


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_with_rules_a_connection_without_certificate_has_no_role(role: int) -> None:
    refusal = permits(None, role, "app", ["peer, driver, producer, consumer = CN:*"])
    assert isinstance(refusal, CertificateRefused)
    assert "must show a certificate" in str(refusal)


def test_a_refusal_names_role_application_names_and_remedy() -> None:
    refusal = permits(a_certificate(DNS("b.example"), ip("10.0.0.1"), common_names=("b",)),
                      ROLE_DRIVER, "etl-1", ["driver = CN:secret-name"])  # fmt: skip
    assert refusal is not None
    assert refusal.code is ErrorCode.NOT_PERMITTED
    assert not refusal.retryable
    assert 'not for a driver of the application "etl-1"' in str(refusal)
    assert str(refusal.value) == "CN:b, DNS:b.example, IP:10.0.0.1"
    assert "transport.tls_certificate_roles" in str(refusal)
    assert "secret-name" not in str(refusal)  # the other side learns no rules


def test_a_certificate_with_many_names_does_not_fill_the_log() -> None:
    many = a_certificate(*(DNS(f"host-{number}.example") for number in range(1000)))
    refusal = permits(many, ROLE_DRIVER, "app", ["driver = CN:a"])
    assert refusal is not None
    assert len(str(refusal)) < 600


# ---- extended key usage ------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [(), ("peer, driver = DNS:a",)], ids=["no rules", "rules"])
@pytest.mark.parametrize(
    ("uses", "peer"),
    [
        ((SERVER, CLIENT), True),
        ((SERVER,), True),
        (None, True),
        ((CLIENT,), False),
        ((ExtendedKeyUsageOID.CODE_SIGNING,), False),
        # OpenSSL does not take such a certificate for a server's either.
        ((ANY,), False),
    ],
    ids=["both", "server", "no limit", "client", "code signing", "any"],
)
def test_only_a_certificate_for_servers_is_a_peer(
    uses: tuple[x509.ObjectIdentifier, ...] | None, peer: bool, rules: tuple[str, ...]
) -> None:
    certificate = a_certificate(DNS("a"), uses=uses)
    refusal = permits(certificate, ROLE_PEER, "", rules)
    assert (refusal is None) == peer
    if refusal is not None:
        assert "clients only" in str(refusal)
        assert "extendedKeyUsage serverAuth, clientAuth" in str(refusal)
    assert permits(certificate, ROLE_DRIVER, "app", rules) is None


# ---- what cannot be read -----------------------------------------------------------------------

UNREADABLE: dict[str, bytes] = {
    "not a certificate": b"\x30\x03\x02\x01\x00",
    "nothing": b"",
    "cut off": a_certificate(DNS("a"))[:-9],
    "a name of an unknown form": a_certificate(
        extensions=(
            x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x03\x83\x01\x00"),
        )
    ),
    "a broken list of uses": a_certificate(
        DNS("a"),
        uses=None,
        extensions=(x509.UnrecognizedExtension(x509.ExtendedKeyUsage.oid, b"\x30\x02\x05"),),
    ),
}


@pytest.mark.parametrize("certificate", UNREADABLE.values(), ids=list(UNREADABLE))
def test_a_certificate_that_cannot_be_read_is_refused(certificate: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_names(certificate)
    for refusal in (
        permits(certificate, ROLE_PEER, ""),
        permits(certificate, ROLE_DRIVER, "app", ["driver = CN:*"]),
    ):
        assert isinstance(refusal, CertificateRefused)
        assert "cannot be read" in str(refusal)


# ---- the grammar -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["peer=CN:a", "  peer  =  CN:a  ", "peer\t=\tCN:a"],
)
def test_blanks_around_the_parts_are_of_no_account(text: str) -> None:
    assert parse_rule(text) == parse_rule("peer = CN:a")


def test_the_parts_of_a_rule() -> None:
    rule = parse_rule("driver,producer , consumer of etl-* = URI:spiffe://a/b c")
    assert rule.roles == {ROLE_DRIVER, ROLE_PRODUCER, ROLE_CONSUMER}
    assert (rule.application, rule.kind, rule.pattern) == ("etl-*", "URI", "spiffe://a/b c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a rule"),
        ("peer", "is not a rule"),
        ("peer = tm1", "is not a rule"),
        ("peer = DNS:", "is not a rule"),
        ("= DNS:a", "is not a rule"),
        ("peer, = DNS:a", "is not a rule"),
        ("peer driver = DNS:a", "is not a rule"),
        ("driver of = DNS:a", "is not a rule"),
        ("driver of a b = DNS:a", "is not a rule"),
        ("driver of a, producer = DNS:a", "is not a rule"),
        ("Peer = DNS:a", 'names the role "Peer": use one of peer, producer, consumer, driver'),
        ("master = DNS:a", 'names the role "master"'),
        ("peer = dns:a", 'names the kind "dns": use one of DNS, IP, URI, email, CN'),
        ("peer = O:a", 'names the kind "O"'),
        ("peer, driver of a = DNS:a", "binds peers to an application"),
        ("peer = IP:10.0.0", "has no address behind IP"),
        ("peer = IP:10.0.0.0/8", "has no address behind IP"),
        ("peer = IP:host", "has no address behind IP"),
    ],
)
def test_a_wrong_rule_is_answered_with_value_form_and_example(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="such as") as caught:
        parse_rule(text)
    assert message in str(caught.value)
    assert f'"{text}"' in str(caught.value)
    with pytest.raises(ValidationError, match="such as"):
        TransportConfig(tls_certificate_roles=("driver = CN:a", text))


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ("driver, peer = CN:a; producer = CN:b ;", ("driver, peer = CN:a", "producer = CN:b")),
        (["driver = CN:a;b"], ("driver = CN:a;b",)),
        ("", ()),
    ],
)
def test_a_flag_has_rules_separated_by_semicolons(given: Any, rules: tuple[str, ...]) -> None:
    assert TransportConfig(tls_certificate_roles=given).tls_certificate_roles == rules
