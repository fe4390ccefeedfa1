from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec import structs

from sluice.cli import endpoints
from sluice.cli import main as cli
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import ErrorResponse, encode
from sluice.shuffle.taskmanager.config.http_config import HttpConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import keys
from sluice.shuffle.taskmanager.http.http_server import HttpServer
from sluice.shuffle.taskmanager.processes import shares
from sluice.shuffle.taskmanager.status.status import TaskManagerStatus
from tests.support.fakes import no_drain
from tests.support.http_servers import in_terminal, page_serving, serving
from tools.docs.sample_status import EMPTY_STATUS, STATUS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch):
    """Run the command line in this process, with only the given variables of Sluice set."""

    def invoke(*arguments: str, env: dict[str, str] | None = None):
        runner = CliRunner(env=env)
        return runner.invoke(cli.main, list(arguments), catch_exceptions=False)

    for key in keys().values():
        monkeypatch.delenv(key.variable, raising=False)
    return invoke


@pytest.fixture
def service(monkeypatch):
    """Stand in for the daemon: keeps the configuration that it was run with, and its source."""

    class Service(types.ModuleType):
        config = None
        load_again = None
        manager = None
        exit_code = 0
        error: Exception | None = None

        def run(self, config, load_again, control, manager):
            assert control is None
            self.config, self.load_again, self.manager = config, load_again, manager
            if self.error is not None:
                raise self.error
            return self.exit_code

    fake = Service("sluice.shuffle.taskmanager.process.service")
    monkeypatch.setitem(sys.modules, "sluice.shuffle.taskmanager.process.service", fake)
    monkeypatch.setattr("sluice.shuffle.taskmanager.process.service", fake, raising=False)
    monkeypatch.setattr(
        shares, "process_count", lambda config: 1
    )  # whatever directories the host has
    return fake


def taskmanager_serving(status):
    async def start():
        server = HttpServer(
            HttpConfig(http_host="127.0.0.1", http_port=0), lambda: status, no_drain
        )
        return await server.start(), server.close

    return serving(start)


def data_port():
    """Answer anything as a TaskManager's data port answers what is not its protocol."""

    async def start():
        async def answer(reader, writer):
            await reader.read(8)
            writer.write(
                encode(ErrorResponse(None, ErrorCode.FRAME_TOO_LARGE, 0, False, "", "", "", None))
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)

        async def close():
            server.close()
            await server.wait_closed()

        return server.sockets[0].getsockname()[1], close

    return serving(start)


class TestTaskmanager:
    def test_flags_environment_and_file_reach_the_daemon(self, run, service, tmp_path):
        path = tmp_path / "sluice.toml"
        path.write_text("[transport]\ndata_port = 1\nlisten_backlog = 2\n[http]\nhttp_port = 3\n")
        result = run(
            "taskmanager", "--config", str(path), "--data-port", "10",
            env={"SLUICE_LISTEN_BACKLOG": "20"},
        )  # fmt: skip
        assert result.exit_code == 0
        transport = service.config.transport
        assert (transport.data_port, transport.listen_backlog) == (10, 20)
        assert service.config.http.http_port == 3

    def test_the_file_can_be_named_by_a_variable(self, run, service, tmp_path):
        path = tmp_path / "sluice.toml"
        path.write_text('log_level = "error"\n')
        assert run("taskmanager", env={"SLUICE_CONFIG": str(path)}).exit_code == 0
        assert service.config.log_level == "error"

    def test_the_daemon_can_load_the_file_again(self, run, service, tmp_path):
        path = tmp_path / "sluice.toml"
        path.write_text('log_level = "error"\n')
        assert run("taskmanager", "--config", str(path), "--data-port", "10").exit_code == 0
        path.write_text('log_level = "debug"\n')
        again = service.load_again()
        assert (again.log_level, again.transport.data_port) == ("debug", 10)

    def test_every_key_has_a_documented_flag(self, run):
        help_text = run("taskmanager", "--help").output
        assert [key.flag for key in keys().values() if key.flag not in help_text] == []

    def test_variables_of_the_platform_are_ignored_with_one_line(self, run, service, caplog):
        variables = {"SLUICE_IMAGE": "sluice:1", "SLUICE_DATA_PORT": "tcp://10.0.0.1:7337"}
        with caplog.at_level("INFO"):
            assert run("taskmanager", env=variables).exit_code == 0
        assert service.config.transport.data_port == 7337
        assert caplog.messages == [
            "Ignoring variables of Docker Compose or Kubernetes: SLUICE_DATA_PORT, SLUICE_IMAGE"
        ]

    @pytest.mark.parametrize("address", [None, "@sluice-test"])
    def test_a_daemon_notifies_only_its_service_manager(self, run, service, monkeypatch, address):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        run("taskmanager", env={"NOTIFY_SOCKET": address})
        assert (service.manager is not None) == (address is not None)
        if service.manager is not None:
            service.manager.close()

    def test_the_exit_code_of_the_daemon_is_returned(self, run, service):
        service.exit_code = 3
        assert run("taskmanager").exit_code == 3

    def test_bad_configuration_is_one_line_for_each_mistake(self, run, service):
        result = run("taskmanager", "--data-port", "x", "--segment-size-bytes", "3 KB")
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            'sluice: configuration: data_port = "x": must be a whole number [--data-port]',
            'sluice: configuration: segment_size_bytes = "3 KB": "KB" is not a unit of size: '
            "use one of B, KiB, MiB, GiB, TiB [--segment-size-bytes]",
        ]
        assert service.config is None

    def test_a_daemon_that_cannot_start_says_so_in_one_line(self, run, service):
        service.error = SluiceError("port taken", value=7337, remedy="Choose another")
        result = run("taskmanager")
        assert result.exit_code == 1
        assert result.stderr == "sluice: port taken (value 7337). Choose another\n"

    def test_an_unknown_flag_is_wrong_usage(self, run, service):
        result = run("taskmanager", "--data-prot", "1")
        assert result.exit_code == 2
        assert "--data-port" in result.stderr


class TestStatus:
    def test_json_is_the_whole_status(self, run):
        with taskmanager_serving(STATUS) as port:
            result = run("status", f"http://127.0.0.1:{port}", "--json")
        assert result.exit_code == 0
        shown = TaskManagerStatus.from_json(json.loads(result.stdout))
        assert structs.replace(shown, warnings=()) == STATUS
        assert shown.warnings

    def test_tables_show_every_part(self, run):
        with taskmanager_serving(STATUS) as port:
            result = run("status", f"127.0.0.1:{port}/", env={"COLUMNS": "160"})
        assert result.exit_code == 0
        for shown in (
            "TaskManager tm-1 is ready on node-1:7337", "Network memory", "2018",
            "/memory/1", "out of use", "app-1", "121 KiB", "node-2:7337", "gate 7",
            "in 12 s", "from map tasks", "Pipelined partitions", "PIPELINED_BOUNDED", "33.5 s, now",
            "40/40", "Channels of gates", "watermark", "event loop at most 750 ms late",
        ):  # fmt: skip
            assert shown in result.stdout

    def test_lines_in_a_pipe_are_never_wrapped(self, run):
        with taskmanager_serving(STATUS) as port:
            wide, narrow = (
                run("status", f"127.0.0.1:{port}", env={"COLUMNS": columns}).stdout
                for columns in ("200", "20")
            )
        assert wide == narrow
        assert "\x1b" not in wide

    def test_a_terminal_of_80_columns_gets_no_longer_line(self):
        with taskmanager_serving(STATUS) as port:
            shown = in_terminal(80, "status", f"127.0.0.1:{port}")
        lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
        assert max(map(len, lines)) <= 80
        assert "Pipelined partitions" in lines
        assert any(line.startswith("gate 7  channel 2  kind remote") for line in lines)

    def test_an_idle_taskmanager_shows_no_empty_tables(self, run):
        with taskmanager_serving(EMPTY_STATUS) as port:
            result = run("status", f"127.0.0.1:{port}")
        assert "starting" in result.stdout
        assert "Gates" not in result.stdout
        assert "Traffic since start" in result.stdout

    def test_names_from_the_network_are_not_markup(self, run):
        document = json.loads(STATUS.encode())
        document["partitions"][0]["application_id"] = "[red]x[/red]"
        with page_serving(json.dumps(document)) as port:
            result = run("status", f"127.0.0.1:{port}", env={"COLUMNS": "160"})
        assert "[red]x[/red]" in result.stdout

    @pytest.mark.parametrize(
        ("body", "code", "reason"),
        [
            ("hello", 200, "it did not answer JSON"),
            ("{}", 200, "status has no taskmanager_id"),
            (
                '{"pools": [{"name": 7}]}',
                200,
                "status is not what a TaskManager reports: "
                "Expected `str`, got `int` - at `$.pools[0].name`",
            ),
            ("gone", 404, "it answered 404 Not Found"),
        ],
    )
    def test_another_server_is_reported_as_such(self, run, body, code, reason):
        with page_serving(body, code) as port:
            result = run("status", f"127.0.0.1:{port}")
        assert result.exit_code == 1
        assert result.stderr == (
            f"Error: http://127.0.0.1:{port} is not the HTTP port of a TaskManager: {reason}\n"
        )

    @pytest.mark.parametrize("command", ["status", "drain"])
    def test_a_data_port_is_reported_with_the_remedy(self, run, command):
        with data_port() as port:
            result = run(command, f"127.0.0.1:{port}")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: http://127.0.0.1:{port} ")
        assert "it did not answer in HTTP, as a data port does not" in result.stderr
        assert "7338 by default" in result.stderr
        assert result.stderr.count("\n") == 1

    def test_a_drain_names_what_has_not_answered_since_the_start(self, run):
        answer = {"state": "draining", "busy": False, "moved": 3, "staying": 0, "unread": ["/b"]}
        with page_serving(json.dumps(answer), 200) as port:
            result = run("drain", "--migrate", f"127.0.0.1:{port}")
            without = run("drain", f"127.0.0.1:{port}")
        assert result.exit_code == 1
        assert "3 map outputs have moved, but more may be in /b, which has not" in result.stderr
        assert (without.exit_code, without.stderr) == (0, "")

    @pytest.mark.parametrize("command", ["status", "drain"])
    def test_an_invalid_url_is_reported_in_one_line(self, run, command):
        result = run(command, "127.0.0.1:http")
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: http://127.0.0.1:http is not a URL: ")
        assert result.stderr.endswith(" Write HOST:PORT\n")

    @pytest.mark.parametrize("command", ["status", "drain"])
    @pytest.mark.parametrize("url", ["127.0.0.1:1", "http://no-such-host.invalid:1", "x://y"])
    def test_a_missing_answer_is_reported_with_the_remedy(self, run, url, command):
        result = run(command, url)
        assert result.exit_code == 1
        shown = url if "://" in url else f"http://{url}"
        assert result.stderr.startswith(f"Error: no TaskManager answers at {shown}: ")
        assert result.stderr.count("\n") == 1
        assert "sluice taskmanager" in result.stderr


def test_commands_of_other_modules_are_imported_when_they_are_used(run):
    listing = run("--help").output
    for name in ("drain", "secret", "spark-conf", "status", "submit", "token", "undrain"):
        assert name in listing
        assert "Usage: " in run(name, "--help").output


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_each_shell_has_a_completion_script(self, run, shell):
        result = run("completion", shell)
        assert result.exit_code == 0
        assert f"_SLUICE_COMPLETE={shell}_complete" in result.stdout

    def test_an_unknown_shell_is_wrong_usage(self, run):
        result = run("completion", "tcsh")
        assert result.exit_code == 2
        assert "'bash', 'zsh', 'fish'" in result.stderr

    def test_bash_completes_commands_and_keys(self):
        line = (
            'eval "$(sluice completion bash)"; COMP_WORDS=(sluice {0}); COMP_CWORD={1}; '
            '_sluice_completion sluice; echo "${{COMPREPLY[@]}}"'
        )
        scripts = Path(sys.executable).parent
        shown = [
            subprocess.run(
                ["bash", "-c", line.format(words, position)],
                capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
                env=os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"},
            ).stdout.split()
            for words, position in (("sta", 1), ("taskmanager --data", 2))
        ]  # fmt: skip
        assert shown == [["status"], ["--data-port", "--data-directories"]]


def test_the_console_script_fails_without_a_traceback():
    script = Path(sys.executable).with_name("sluice")
    done = subprocess.run(
        [script, "taskmanager", "--config", "/no/such/file.toml"],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "sluice: configuration: configuration file /no/such/file.toml cannot be read: "
        "No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("host2", "http://host2:7338"),
        ("host2:7400", "http://host2:7400"),
        ("::1", "http://[::1]:7338"),
        ("[::1]:7400", "http://[::1]:7400"),
        ("http://host2/", "http://host2"),
    ],
)
def test_status_completes_the_address_that_a_user_types(
    monkeypatch: pytest.MonkeyPatch, typed: str, asked: str
) -> None:
    urls: list[str] = []

    def fetch(url: str, path: str, **extra: object) -> object:
        urls.append(url)
        raise click.ClickException("nobody is there")

    monkeypatch.setattr(endpoints, "fetch_json", fetch)
    assert CliRunner().invoke(cli.main, ["status", typed]).exit_code == 1
    assert urls == [asked]
