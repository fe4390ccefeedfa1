"""No secret stays in a text, and what is not one stays readable."""

from __future__ import annotations

import base64

import pytest

from sluice.cli.redaction import REMOVED, is_sensitive, known_forms, redact
from sluice.protocol.access_token import make_access_token
from sluice.protocol.identity import SubmitToken, secret_to_text
from tests.protocol.identity_vectors import SECRET

TOKEN = SubmitToken.make(SECRET, "team", 0, b"0123456789abcdef"[:8])
TEXTS = {
    "secret": secret_to_text(SECRET),
    "access": make_access_token(SECRET, "admin", 0).to_text(),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("frame", ["{}", "token: {}", 'x "{}", y', "a={};b", "Bearer {}", "<{}>"])
def test_what_sluice_makes_is_removed_wherever_it_stands(frame, text):
    shown = redact(frame.format(text))
    assert text not in shown
    assert text.rpartition("-1-")[2][:8] not in shown
    assert REMOVED in shown


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "abc/def+ghi"),
        ("AWS_SECRET_ACCESS_KEY=/abc/def+ghi", "/abc/def+ghi"),
        ('password = "hunter 2"', "hunter 2"),
        ("password = 123456", "123456"),
        ('{"client_secret": "s3cr3t"}', "s3cr3t"),
        ("spark.sluice.auth.token abc sluice.auth.token=letmein", "letmein"),
        ("Authorization: Bearer abcdefgh.ijkl", "abcdefgh"),
        ("https://user:hunter2@host/path", "hunter2"),
        ("key AKIAABCDEFGHIJKLMNOP in a log", "AKIAABCDEFGHIJKLMNOP"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE (cut off)", "MIIE"),
        ("MIIE\n-----END PRIVATE KEY-----\nthe log", "MIIE"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text, secret):
    shown = redact(text)
    assert secret not in shown
    assert REMOVED in shown


@pytest.mark.parametrize("encode", [str, bytes.hex, base64.b64encode, base64.urlsafe_b64encode])
def test_a_known_secret_is_removed_in_each_form(encode):
    secret = b"a known secret of some file"
    form = secret.decode() if encode is str else encode(secret)
    text = f"x {form.decode() if isinstance(form, bytes) else form} y"
    assert redact(text, known_forms([secret])) == f"x {REMOVED} y" or REMOVED in redact(
        text, known_forms([secret])
    )
    assert str(form).strip("b'=") not in redact(text, known_forms([secret]))


@pytest.mark.parametrize(
    "text",
    [
        'cluster_secret_files = ["/etc/sluice/secret"]',
        "SLUICE_CREDENTIAL_FILE=/home/me/token",
        "revoked_tokens_file = none",
        "max_tokens = 12",
        "2026-11-29 INFO TaskManager tm-1 is ready: data port node-1:7337",
        '{"credits_sent": 1011, "map_outputs": 3}',
    ],
)
def test_paths_numbers_and_log_lines_stay(text):
    assert redact(text) == text


def test_a_short_known_text_is_not_searched_for():
    assert known_forms(["abc"]) == known_forms([b"abc"])
    assert "abc" not in known_forms(["abc"])


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("SLUICE_ACCESS_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("SLUICE_CREDENTIAL", True),
        ("SLUICE_DATA_PORT", False),
        ("JAVA_HOME", False),
    ],
)
def test_names_of_variables_tell(name, sensitive):
    assert is_sensitive(name) == sensitive


def test_a_submit_token_is_removed():
    text = TOKEN.to_text()
    assert text[-12:] not in redact(f"job failed with {text}")
