"""``sluice status`` and ``sluice drain``: their credentials, and their errors without them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re

import pytest
from aiohttp import web
from click.testing import CliRunner

from sluice.cli import http_client
from sluice.cli import main as cli
from sluice.cli.http_client import TOKEN_SECONDS, Given, NoAnswer, fetch_json
from sluice.protocol.access_token import make_access_token, parse_access_token
from sluice.protocol.identity import ClusterSecrets, secret_to_text
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.shuffle.taskmanager.http.http_access import HttpAccess
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from tests.protocol.identity_vectors import OTHER_SECRET, SECRET
from tests.support.fakes import no_drain
from tests.support.http_servers import in_terminal, page_serving, serving
from tools.docs.sample_status import STATUS

NOW = 1_800_000_000


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("SLUICE_ACCESS_TOKEN", *(key.variable for key in keys().values())):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def url():
    async def start():
        http = HttpConfig(http_host="127.0.0.1", http_port=0)
        access = HttpAccess(ClusterSecrets([SECRET]))
        server = HttpServer(http, lambda: STATUS, no_drain, lambda: access)
        return await server.start(), server.close

    with serving(start) as port:
        url = f"http://127.0.0.1:{port}"
        # The thread has opened its files before the first test looks at what is open.
        http_client.fetch_json(url, "/healthz")
        yield url


@pytest.fixture
def secret_file(tmp_path):
    return written(tmp_path / "secret", secret_to_text(SECRET))


def written(path, text):
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def run(*arguments, env=None):
    return CliRunner(env=env).invoke(cli.main, [str(each) for each in arguments])


@pytest.mark.parametrize("command", ["status", "drain"])
def test_a_command_makes_its_token_from_the_secret(url, secret_file, command):
    given = run(command, url, "--secret-file", secret_file)
    assert given.exit_code == 0, given.output
    found = run(command, url, env={"SLUICE_CLUSTER_SECRET_FILES": f"{secret_file},/no/such"})
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("command", ["status", "drain"])
def test_a_command_sends_the_given_token(url, tmp_path, command):
    text = make_access_token(SECRET, "admin", 0).to_text()
    given = run(command, url, "--token-file", written(tmp_path / "token", text))
    assert given.exit_code == 0, given.output
    found = run(command, url, env={"SLUICE_ACCESS_TOKEN": text})
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("command", ["status", "drain"])
def test_a_missing_token_is_reported_with_the_remedy(url, command):
    result = run(command, url)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: {url} requires an access token: give --secret-file or --token-file, or set "
        "SLUICE_ACCESS_TOKEN or SLUICE_CLUSTER_SECRET_FILES\n"
    )


def test_a_token_without_permission_is_reported_with_the_remedy(url):
    token = make_access_token(SECRET, "status", 0).to_text()
    result = run("drain", url, env={"SLUICE_ACCESS_TOKEN": token})
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: {url} refuses this: The access token does not allow this (value scope status, "
        "limit scope admin). Make one with: sluice token create --access admin\n"
    )


def test_the_secret_of_another_cluster_is_refused_in_one_line(url, tmp_path):
    other = written(tmp_path / "other", secret_to_text(OTHER_SECRET))
    result = run("status", url, "--secret-file", other)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {url} refuses this: The access token is not accepted")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--secret-file", "--token-file"])
def test_an_unreadable_file_is_reported_in_one_line(url, option):
    result = run("status", url, option, "/no/such/file")
    assert result.exit_code == 1
    assert "/no/such/file" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("body", ["", "gone", "[]", '{"error": "a\\u001b[31m\\nb"}', "{}"])
def test_control_characters_of_another_server_are_replaced(body):
    with page_serving(body, 403) as port:
        result = run("status", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: http://127.0.0.1:{port} refuses this: ")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("scope", ["status", "admin"])
def test_a_token_made_by_a_command_is_valid_for_a_minute(monkeypatch, secret_file, scope):
    monkeypatch.setattr("sluice.cli.http_client.time.time", lambda: float(NOW))
    token = Given(secret_file, None).token(scope)
    assert token == make_access_token(SECRET, scope, NOW + TOKEN_SECONDS).to_text()


def test_the_secret_of_the_configuration_is_the_last_choice(monkeypatch, secret_file):
    monkeypatch.delenv("SLUICE_CLUSTER_SECRET_FILES", raising=False)
    monkeypatch.setattr("sluice.cli.http_client.time.time", lambda: float(NOW))
    made = make_access_token(SECRET, "status", NOW + TOKEN_SECONDS).to_text()
    assert Given(None, None).token("status", secret_file) == made
    monkeypatch.setenv("SLUICE_ACCESS_TOKEN", "given")
    assert Given(None, None).token("status", secret_file) == "given"


def test_doctor_uses_the_secret_of_the_configuration(url, secret_file, tmp_path):
    config = tmp_path / "taskmanager.toml"
    config.write_text(f'[auth]\ncluster_secret_files = ["{secret_file}"]\n')
    lines = run("doctor", url, "--config", config).stdout.splitlines()
    (line,) = (each for each in lines if "HTTP http" in each)
    assert "access token" not in line


def test_doctor_asks_the_ports_also_if_the_secret_of_the_configuration_cannot_be_read(
    url, secret_file, tmp_path, monkeypatch
):
    monkeypatch.delenv("SLUICE_CLUSTER_SECRET_FILES", raising=False)
    config = tmp_path / "taskmanager.toml"
    config.write_text(f'[auth]\ncluster_secret_files = ["{tmp_path / "of-root"}"]\n')
    lines = run("doctor", url, "--config", config).stdout.splitlines()
    assert [each for each in lines if f"HTTP {url}" in each]
    assert [each for each in lines if each.startswith("problem") and "secret:" in each]
    given = run("doctor", url, "--config", config, "--secret-file", tmp_path / "none").stdout
    assert "access token: " in given


def test_a_body_is_sent_as_json(monkeypatch):
    async def start():
        async def echo(request: web.Request) -> web.Response:
            return web.json_response([request.content_type, await request.json()])

        app = web.Application()
        app.add_routes([web.put("/path", echo)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1], runner.cleanup

    with serving(start) as port:
        found = fetch_json(f"http://127.0.0.1:{port}", "/path", "PUT", body={"a": 1})
    assert found == ["application/json", {"a": 1}]


@pytest.mark.parametrize("command", ["status", "drain"])
def test_a_command_uses_the_unix_socket_that_it_is_given(tmp_path, command):
    path = tmp_path / "http.sock"

    async def start():
        http = HttpConfig(http_host="127.0.0.1", http_port=0, http_socket_path=path)
        server = HttpServer(http, lambda: STATUS, no_drain)
        return await server.start(), server.close

    with serving(start) as port:
        given = run(command, f"unix:{path}")
        assert given.exit_code == 0, given.output
        found = run(command, env={"SLUICE_HTTP_SOCKET_PATH": str(path)})
        assert found.exit_code == 0, found.output
        over_tcp = run("drain", f"127.0.0.1:{port}")
    assert over_tcp.exit_code == 1
    assert "http_socket_path" in over_tcp.stderr
    assert over_tcp.stderr.count("\n") == 1
    missing = run(command, f"unix:{path}")
    assert missing.exit_code == 1
    assert f"no TaskManager answers at unix:{path}: [Errno 2] No such file" in missing.stderr


def test_anonymous_access_is_red_in_a_terminal_and_plain_in_a_pipe():
    document = json.dumps(json.loads(STATUS.encode()) | {"serves": "anonymous"})
    with page_serving(document) as port:
        shown = in_terminal(80, "status", f"127.0.0.1:{port}")
        piped = run("status", f"127.0.0.1:{port}").stdout
    line = "ANONYMOUS: everyone who reaches a port can read and remove data"
    assert re.search(rf"\x1b\[31m\x1b\[1m{line}\x1b\[0m", shown)
    assert line in piped.splitlines()
    assert "\x1b" not in piped


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n["])
@pytest.mark.parametrize("is_unix", [False, True])
def test_a_slow_answer_ends_at_the_deadline(tmp_path, sent, is_unix):
    path = tmp_path / "http.sock"

    async def start():
        ended = asyncio.Event()

        async def answer(reader, writer):
            writer.write(sent)
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"a: b\r\n" if sent.endswith(b"K\r\n") else b" ")
                    await writer.drain()
                    await asyncio.sleep(0.05)  # slow
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            ended.set()

        if is_unix:
            server = await asyncio.start_unix_server(answer, path)
        else:
            server = await asyncio.start_server(answer, "127.0.0.1", 0)

        async def close():
            await ended.wait()  # the client has gone
            server.close()

        return 0 if is_unix else server.sockets[0].getsockname()[1], close

    with serving(start) as port:
        url = f"unix:{path}" if is_unix else f"http://127.0.0.1:{port}"
        with pytest.raises(NoAnswer, match=r"its answer was not complete within 0\.5 s"):
            fetch_json(url, "/", timeout_seconds=0.5)


class TestCreate:
    @pytest.mark.parametrize("scope", ["status", "admin"])
    def test_an_access_token_can_be_made_and_shown(self, secret_file, tmp_path, scope):
        made = run(
            *("token", "create", "--secret-file", secret_file),
            *("--access", scope, "--expires", "never"),
        )
        assert made.exit_code == 0
        token = make_access_token(SECRET, scope, 0)
        assert made.stdout == token.to_text() + "\n"
        shown = run("token", "show", written(tmp_path / "token", made.stdout))
        lines = [f"access   {scope}", f"id       {token.token_id.hex()}", "expires  never"]
        assert shown.stdout.splitlines() == lines

    def test_an_access_token_expires(self, monkeypatch, secret_file):
        monkeypatch.setattr("sluice.cli.secret_commands.time.time", lambda: float(NOW))
        made = run(
            *("token", "create", "--secret-file", secret_file),
            *("--access", "status", "--expires", "12h"),
        )
        assert parse_access_token(made.stdout).expires_at_seconds == NOW + 12 * 3600

    def test_an_access_token_has_no_subject(self, secret_file):
        result = run(
            *("token", "create", "--secret-file", secret_file),
            *("--access", "status", "--subject", "x"),
        )
        assert result.exit_code == 2
        assert "has no subject" in result.stderr

    def test_without_the_option_it_is_a_submit_token(self, secret_file):
        made = run("token", "create", "--secret-file", secret_file)
        assert made.stdout.startswith("sluice-token-1-")
