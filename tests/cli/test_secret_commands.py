"""``sluice secret`` and ``sluice token``: what they make, show and refuse."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat

import pytest
from click.testing import CliRunner

from sluice.cli import main as cli
from sluice.protocol.access_token import AccessToken, make_access_token, parse_access_token
from sluice.protocol.identity import (
    SubmitToken,
    parse_secret,
    parse_token,
    secret_id,
    secret_to_text,
)
from sluice.protocol.limits import MAX_SUBJECT_BYTES, MAX_U64
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.transport.access import read_secret
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET, TOKEN_ID

NOW = 1_800_000_000
TEXT = secret_to_text(SECRET)
VARIABLE = "SLUICE_CLUSTER_SECRET_FILES"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for key in keys().values():
        monkeypatch.delenv(key.variable, raising=False)


@pytest.fixture
def now(monkeypatch):
    """Stop the clock."""
    monkeypatch.setattr("sluice.cli.secret_commands.time.time", lambda: float(NOW))


@pytest.fixture
def secret_file(tmp_path):
    return written(tmp_path / "secret", TEXT)


def written(path, text, mode=0o600):
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def run(*arguments, env=None, stdin=None):
    given = [str(each) for each in arguments]
    return CliRunner(env=env).invoke(cli.main, given, input=stdin)


def refused(result, exit_code=1):
    """Return the one line of an error."""
    assert result.exit_code == exit_code, result.output
    assert isinstance(result.exception, SystemExit)  # told, and not thrown
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.stderr.endswith(f"{line}\n")
    return line


class TestCreateSecret:
    def test_a_secret_is_readable_by_its_owner_only(self, tmp_path):
        path = tmp_path / "secret"
        result = run("secret", "create", path)
        assert result.exit_code == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        text = path.read_text()
        assert text == secret_to_text(read_secret(path)) + "\n"
        assert f'cluster_secret_files = ["{path}"]' in result.output
        assert text.strip() not in result.output

    def test_a_place_where_a_secret_is_refused_is_told_at_once(self, tmp_path):
        assert run("secret", "create", tmp_path / "secret").stderr == ""
        tmp_path.chmod(0o777)
        result = run("secret", "create", tmp_path / "another")
        assert (result.exit_code, (tmp_path / "another").exists()) == (0, True)
        assert result.stderr.startswith("Warning: a TaskManager of this user refuses it there.")
        assert f"other users can write to {tmp_path}" in result.stderr

    def test_the_mode_of_a_secret_ignores_the_umask(self, tmp_path):
        before = os.umask(0)
        try:
            assert run("secret", "create", tmp_path / "secret").exit_code == 0
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600

    def test_a_secret_without_a_file_is_printed(self):
        result = run("secret", "create")
        assert result.exit_code == 0
        assert result.stderr == ""
        assert secret_to_text(parse_secret(result.stdout)) + "\n" == result.stdout

    def test_two_secrets_differ(self):
        assert len({run("secret", "create").stdout for _ in range(5)}) == 5

    @pytest.mark.parametrize("content", ["", TEXT, "a shopping list"], ids=["empty", "own", "else"])
    def test_an_existing_file_is_not_overwritten(self, tmp_path, content):
        path = written(tmp_path / "secret", content, 0o644)
        line = refused(run("secret", "create", path))
        assert line.startswith(f"Error: {path} exists")
        assert path.read_text() == content + "\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_a_secret_is_not_written_through_a_link(self, tmp_path):
        link, elsewhere = tmp_path / "link", tmp_path / "elsewhere"
        link.symlink_to(elsewhere)
        assert "exists" in refused(run("secret", "create", link))
        assert not elsewhere.exists()

    def test_a_file_that_cannot_be_created_is_reported_in_one_line(self, tmp_path):
        path = tmp_path / "missing" / "secret"
        line = refused(run("secret", "create", path))
        assert line == f"Error: {path} cannot be written: No such file or directory"

    def test_a_file_that_cannot_be_filled_is_not_left_behind(self, tmp_path):
        path = tmp_path / "secret"
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            result = run("secret", "create", path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert refused(result) == f"Error: {path} cannot be written: File too large"
        assert not path.exists()
        assert run("secret", "create", path).exit_code == 0


def create(secret_file, *arguments, env=None):
    return run("token", "create", "--secret-file", secret_file, *arguments, env=env)


class TestCreateToken:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("1s", 1), ("30m", 1800), ("12h", 43200), ("1d", 86400), ("999999d", 999999 * 86400)],
        ids=["second", "minutes", "hours", "day", "years"],
    )
    def test_a_token_expires(self, now, secret_file, text, seconds):
        made = create(secret_file, "--expires", text)
        assert made.exit_code == 0
        token = parse_token(made.stdout)
        assert token.expires_at_seconds == NOW + seconds
        expected = SubmitToken.make(SECRET, "", NOW + seconds, token.token_id)
        assert made.stdout == expected.to_text() + "\n"

    def test_a_token_that_never_expires(self, secret_file):
        made = create(secret_file, "--expires", "never")
        assert parse_token(made.stdout).expires_at_seconds == 0

    def test_a_token_is_valid_for_a_week_by_default(self, now, secret_file):
        assert parse_token(create(secret_file).stdout).expires_at_seconds == NOW + 7 * 86400

    def test_two_tokens_differ(self, now, secret_file):
        tokens = [parse_token(create(secret_file).stdout) for _ in range(5)]
        assert len({token.token_id for token in tokens}) == 5
        assert len({token.key for token in tokens}) == 5

    @pytest.mark.parametrize("access", [(), ("--access", "status")], ids=["submit", "access"])
    @pytest.mark.parametrize(
        "text",
        [
            *("", "0d", "-1d", "+1d", "1w", "7D", "7", "d", "1.5h", " 7d", "7d ", "1d12h", "Never"),
            *("1000000d", "tomorrow", "2027-01-01", "2027-01-01T00:00:00Z", "٣d", "7d\n"),
        ],
        ids=repr,
    )
    def test_an_invalid_expiry_is_reported_with_the_valid_form(self, secret_file, text, access):
        line = refused(create(secret_file, f"--expires={text}", *access), exit_code=2)
        assert line.startswith("Error: Invalid value for --expires: ")
        assert line.endswith("write 30m, 12h, 7d or never")

    @pytest.mark.parametrize(
        "subject", ["alice", "Zoë 🦀", "a b", "x" * MAX_SUBJECT_BYTES], ids=len
    )
    def test_a_token_has_a_subject(self, secret_file, subject):
        made = create(secret_file, "--subject", subject)
        assert parse_token(made.stdout).subject == subject

    def test_a_long_subject_is_refused_in_one_line(self, secret_file):
        line = refused(create(secret_file, "--subject", "é" * (MAX_SUBJECT_BYTES // 2 + 1)))
        assert "subject of a token is too long" in line
        assert f"limit {MAX_SUBJECT_BYTES} bytes" in line

    @pytest.mark.parametrize(
        "subject",
        ["a\nexpires  never", "\x1b[31m", "\udcff\udcfe", "a\x00", "\u202e"],
        ids=["line", "escape", "no character", "zero", "direction"],
    )
    def test_an_unprintable_subject_is_refused_in_one_line(self, secret_file, subject):
        line = refused(create(secret_file, f"--subject={subject}"), exit_code=2)
        assert line.startswith("Error: Invalid value for --subject: ")
        assert line.isprintable()

    def test_a_missing_secret_is_reported_with_the_remedy(self):
        for access in ((), ("--access", "admin")):
            line = refused(run("token", "create", *access), exit_code=2)
            assert "--secret-file" in line
            assert VARIABLE in line

    def test_the_secret_of_the_environment_is_the_first_of_its_files(self, secret_file, tmp_path):
        env = {VARIABLE: f" {secret_file} , {tmp_path / 'missing'}"}
        made = run("token", "create", env=env)
        assert parse_token(made.stdout).secret_id == secret_id(SECRET)

    def test_an_option_overrides_the_environment(self, secret_file, tmp_path):
        other = written(tmp_path / "other", secret_to_text(OTHER_SECRET))
        made = create(other, env={VARIABLE: str(secret_file)})
        assert parse_token(made.stdout).secret_id == secret_id(OTHER_SECRET)

    @pytest.mark.parametrize("access", [(), ("--access", "status")], ids=["submit", "access"])
    def test_an_unusable_secret_is_reported_without_its_text(self, tmp_path, access):
        body = TEXT.rpartition("-")[2]
        cases = {
            "cannot be read": tmp_path / "missing",
            "open to other users": written(tmp_path / "open", TEXT, 0o644),
            "does not contain a secret": written(tmp_path / "cut", TEXT[:-3]),
        }
        for told, path in cases.items():
            line = refused(create(path, *access))
            assert told in line
            assert str(path) in line
            assert not [at for at in range(len(body) - 8) if body[at : at + 8] in line]

    @pytest.mark.parametrize("scope", ["status", "admin"])
    def test_an_access_token_is_valid_for_a_week_by_default(self, now, secret_file, scope):
        made = create(secret_file, "--access", scope)
        assert made.stdout == make_access_token(SECRET, scope, NOW + 7 * 86400).to_text() + "\n"
        assert parse_access_token(made.stdout).scope == scope

    @pytest.mark.parametrize("scope", ["root", "", "Status", "status,admin"])
    def test_an_unknown_scope_is_reported_with_the_known_ones(self, secret_file, scope):
        line = refused(create(secret_file, f"--access={scope}"), exit_code=2)
        assert "'status', 'admin'" in line


EVER = SubmitToken.make(SECRET, "alice", 0, TOKEN_ID)
ADMIN_ID, STATUS_ID = (
    hashlib.sha256(make_access_token(SECRET, scope, at).proof).hexdigest()[:32]
    for scope, at in (("admin", NOW), ("status", 0))
)
STEERING = "\x1b[2J\nexpires  never\r"
"""Clears a terminal and forges a line."""


class TestShow:
    @pytest.mark.parametrize("way", ["file", "input", "dash"])
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (
                SubmitToken.make(SECRET, "Zoë 🦀", NOW, TOKEN_ID).to_text(),
                [
                    "subject  Zoë 🦀",
                    f"id       {TOKEN_ID.hex()}",
                    f"secret   {secret_id(SECRET).hex()}",
                    "expires  2027-01-15 08:00:00 UTC",
                ],
            ),
            (
                SubmitToken.make(OTHER_SECRET).to_text(),
                [
                    "subject  -",
                    f"id       {bytes(16).hex()}",
                    f"secret   {secret_id(OTHER_SECRET).hex()}",
                    "expires  never",
                ],
            ),
            (
                make_access_token(SECRET, "admin", NOW).to_text(),
                ["access   admin", f"id       {ADMIN_ID}", "expires  2027-01-15 08:00:00 UTC"],
            ),
            (
                make_access_token(SECRET, "status", 0).to_text(),
                ["access   status", f"id       {STATUS_ID}", "expires  never"],
            ),
        ],
        ids=["submit", "owner", "admin", "status"],
    )
    def test_a_token_is_shown(self, now, tmp_path, way, text, shown):
        if way == "file":
            result = run("token", "show", written(tmp_path / "token", text))
        else:
            result = run("token", "show", *(["-"] if way == "dash" else []), stdin=f" {text}\n")
        assert result.exit_code == 0
        assert result.stdout.splitlines() == shown

    @pytest.mark.parametrize("at", [NOW - 1, 1], ids=["just", "long ago"])
    def test_an_expired_token_is_reported(self, now, at):
        for text in (
            SubmitToken.make(SECRET, "", at).to_text(),
            make_access_token(SECRET, "status", at).to_text(),
        ):
            shown = run("token", "show", stdin=text).stdout.splitlines()[-1]
            assert shown.endswith("UTC (it has expired)")

    def test_a_token_beyond_the_calendar_is_shown(self, now):
        text = SubmitToken.make(SECRET, "", MAX_U64).to_text()
        shown = run("token", "show", stdin=text).stdout.splitlines()[-1]
        assert shown == f"expires  {MAX_U64} seconds after 1970"

    def test_a_shown_token_contains_no_key(self):
        access = make_access_token(SECRET, "admin", 0)
        for text, key in ((EVER.to_text(), EVER.key), (access.to_text(), access.proof)):
            shown = run("token", "show", stdin=text).output
            assert key.hex()[:16] not in shown
            assert text[20:40] not in shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (
                SubmitToken.make(SECRET, f"{STEERING}\u202e", 1, TOKEN_ID).to_text(),
                ["subject", "id", "secret", "expires"],
            ),
            (AccessToken(STEERING, 1, bytes(32)).to_text(), ["access", "id", "expires"]),
        ],
        ids=["submit", "access"],
    )
    def test_control_characters_of_a_token_are_replaced(self, text, shown):
        result = CliRunner().invoke(cli.main, ["token", "show"], input=text, color=True)
        lines = result.stdout.splitlines()
        assert [line.split()[0] for line in lines] == shown
        assert all(line.isprintable() for line in lines)
        assert lines[-1] == "expires  1970-01-01 00:00:01 UTC (it has expired)"

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"hunter2 is my password",
            EVER.to_text()[:50].encode(),
            EVER.to_text().encode("utf-16"),
            make_access_token(SECRET, "admin", 0).to_text()[:50].encode(),
            TEXT.encode(),
            EVER.application(TOKEN_ID).to_text().encode(),
            b"\xff\xfe\x00",
            b"sluice-access-1-\xff" + bytes(50),
        ],
        ids=[
            "empty",
            "password",
            "cut token",
            "utf-16",
            "cut access",
            "secret",
            "driver",
            "bytes",
            "access of bytes",
        ],
    )
    def test_an_invalid_token_is_refused_without_its_text(self, tmp_path, content):
        path = tmp_path / "file"
        path.write_bytes(content)
        for result in (run("token", "show", path), run("token", "show", stdin=content)):
            line = refused(result)
            assert "of Sluice" in line or "is damaged" in line
            assert line.endswith("Copy the whole text")
            body = content.decode(errors="replace")[16:]
            assert not [at for at in range(len(body) - 8) if body[at : at + 8] in line]

    def test_an_unreadable_file_is_reported_in_one_line(self, tmp_path):
        for path in (tmp_path / "missing", tmp_path):
            assert str(path) in refused(run("token", "show", path), exit_code=2)


class TestJson:
    def test_a_secret_is_printed_only_without_a_file(self, tmp_path):
        path = tmp_path / "secret"
        written, printed = (
            json.loads(run("secret", "create", "--json", *file).stdout) for file in ([path], [])
        )
        assert written == {"schema": "sluice.secret.create/1", "file": str(path), "secret": None}
        assert printed["file"] is None
        assert parse_secret(printed["secret"])

    @pytest.mark.parametrize("access", [(), ("--access", "admin")], ids=["submit", "access"])
    def test_a_token_is_printed_only_without_a_file(self, now, secret_file, tmp_path, access):
        path = tmp_path / "token"
        written, printed = (
            json.loads(create(secret_file, "--json", *access, *out).stdout)
            for out in (["--out", path], [])
        )
        assert (written["file"], written["token"], printed["file"]) == (str(path), None, None)
        for document, text in ((written, path.read_text()), (printed, printed["token"])):
            token = parse_access_token(text) if access else parse_token(text)
            assert document["kind"] == ("access" if access else "submit")
            assert document["id"] == token.token_id.hex()
            assert document["expires_at"] == token.expires_at_seconds == NOW + 7 * 86400

    def test_the_expiry_of_a_token_that_never_expires_is_null(self, secret_file):
        made = json.loads(create(secret_file, "--json", "--expires=never").stdout)
        assert made["expires_at"] is None

    def test_the_fields_of_a_token_do_not_contain_the_token(self, now):
        token = SubmitToken.make(SECRET, f"al{STEERING}ice", NOW - 1, TOKEN_ID)
        shown = run("token", "show", "--json", stdin=token.to_text())
        assert json.loads(shown.stdout) == {
            "schema": "sluice.token.show/1",
            "kind": "submit",
            "subject": "al?[2J?expires  never?ice",
            "access": "",
            "id": TOKEN_ID.hex(),
            "secret_id": secret_id(SECRET).hex(),
            "expires_at": NOW - 1,
            "expired": True,
        }
        assert token.key.hex()[:16] not in shown.output

    def test_an_access_token_is_shown_with_its_scope(self, now):
        text = make_access_token(SECRET, "status", 0).to_text()
        assert json.loads(run("token", "show", "--json", stdin=text).stdout) == {
            "schema": "sluice.token.show/1",
            "kind": "access",
            "subject": "",
            "access": "status",
            "id": STATUS_ID,
            "secret_id": "",
            "expires_at": None,
            "expired": False,
        }


def test_a_token_file_is_readable_by_its_owner_only(tmp_path, secret_file, monkeypatch):
    """Not even if it replaces a file of another mode, or the umask is open."""
    before = os.umask(0)
    try:
        out = written(tmp_path / "token", "earlier", 0o644)
        modes = []
        write = os.fsync

        def fsync(descriptor):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
            write(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        with out.open() as earlier:
            result = run("token", "create", "--secret-file", secret_file, "--out", out)
            assert earlier.read() == "earlier\n"  # a process that has it open reads no token
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    token_id = parse_token(out.read_text()).token_id.hex()
    assert result.output == f"The token is in {out}. Its id, to revoke it, is {token_id}\n"
    assert modes == [0o600]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert parse_token(out.read_text()).expires_at_seconds > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "token"]


@pytest.mark.parametrize("name", ["none/token", "."])
def test_a_token_that_cannot_be_written_is_reported_in_one_line(tmp_path, secret_file, name):
    out = tmp_path / name
    result = run("token", "create", "--secret-file", secret_file, "--out", out)
    assert refused(result).startswith(f"Error: {out} cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_token_replaces_regular_files_only(tmp_path, secret_file, kind):
    """As root it would be a device that all others use: /dev/null, /dev/stdout."""
    out = tmp_path / "out"
    if kind == "pipe":
        os.mkfifo(out)
    else:
        out.symlink_to(tmp_path / "elsewhere")
    before = out.lstat()
    result = run("token", "create", "--secret-file", secret_file, "--out", out)
    assert refused(result) == f"Error: {out} cannot be written: It is not a regular file"
    assert os.path.samestat(out.lstat(), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "secret"]
