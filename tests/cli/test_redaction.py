"""No secret stays in a text, and what is not one stays readable."""

from __future__ import annotations

import base64
import json

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
        (r'{"message":"{\"password\":\"hunter2\"}"}', "hunter2"),
        (r'INFO {"message":"{\"token\":\"hunter \\\"2\"}"}', "hunter"),
        (r'INFO {"message":"{\"token\":\"hun \\\"ter2\"}"}', "ter2"),
        ('secret = """\nfirst\nhunter2\n"""\n', "hunter2"),
        ("secret = '''\nfirst\nhunter2\n'''\n", "hunter2"),
        ('api_key="a\\\nhunter2"', "hunter2"),
        ('token="first\nhunter2 x" y="z"', "hunter2"),
        ("password: >-\n  first\n  hunter2\nnext: 1", "hunter2"),
        ("a:\n  token: |\n    first\n\n    hunter2\n", "hunter2"),
        ("password=my pass hunter2", "hunter2"),
        ("PASSWORD='it''s hunter2'", "hunter2"),
        ("TOKEN='it'\\''s hunter2'", "hunter2"),
        ("AccountName=me;AccountKey=hunter2+/==;EndpointSuffix=x", "hunter2"),
        ('azure_storage_account_key = "hunter2=="', "hunter2"),
        ("DB_PASS=hunter2", "hunter2"),
        ("GET https://host/x?X-Amz-Date=1&X-Amz-Signature=hunter2&x=1", "hunter2"),
        ("https://host/x?sv=1&sig=hunter2%3D", "hunter2"),
        ("https://hunter2@host/path", "hunter2"),
        ("https://me:p@hunter2@host/path", "hunter2"),
        ("sluice --password hunter2 run", "hunter2"),
        ("--token 'hunter2 x'", "x"),
        ("--conf spark.sluice.auth.token hunter2 --x", "hunter2"),
        ("spark.ssl.keyPassword  my hunter2", "hunter2"),
        ("['--access-token', 'hunter2']", "hunter2"),
        ("set-cookie: session=hunter2; Path=/", "hunter2"),
        ("<name>fs.s3a.secret.key</name>\n <value>hunter2</value>", "hunter2"),
        ("tokens = ['x', 'hunter2']", "hunter2"),
        ('[{"args": ["--token", "hunter2"]}]', "hunter2"),
        ('{"tokens": {"me": ["hunter2"]}}', "hunter2"),
        ('{"https://me:hunter2@host": 1}', "hunter2"),
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
        '{"credits_sent":1011,"tokens":3}',
        "tokens: 3 (max_tokens=12)",
        "sluice status --token-file /etc/token --secret-file /etc/secret",
        'key="a" value="b"',
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


def test_json_stays_json():
    text = json.dumps({"jobs": ["run --password x", "https://me:x@host"], "ready": True})
    assert json.loads(redact(text)) == {
        "jobs": [f"run --password {REMOVED}", f"https://{REMOVED}host"],
        "ready": True,
    }


def test_what_is_near_a_secret_stays():
    assert redact('token="x", host="node-1"') == f'token="{REMOVED}", host="node-1"'
    assert redact('INFO {"error":"token: x","host":"node-1"}') == (
        f'INFO {{"error":"token: {REMOVED}","host":"node-1"}}'
    )
    assert redact("password: a b\nINFO ready") == f"password: {REMOVED}\nINFO ready"


def test_an_unclosed_quote_does_not_hide_the_next_secret():
    assert "hunter2" not in redact('secret = "x\ntoken = "hunter2"\n')


def test_json_that_is_too_deep_is_a_text():
    assert "hunter2" not in redact("[" * 100_000 + "password=hunter2")


def test_a_known_secret_is_removed_with_escapes():
    known = known_forms(['a "known" secret'])
    assert "known" not in redact(r'x "a \"known\" secret" a%20%22known%22%20secret', known)
