"""The wheel and the sdist, built and used as strangers do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sluice.spark_integration import jar_path

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 240
JAR = "sluice/spark_integration/jars/sluice-spark.jar"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(DEADLINE_SECONDS),
    pytest.mark.xdist_group("package"),  # one worker builds the wheel, once
]

USERS_MODULE = "MINE = True\n"
"""A module of the user's that has the name of one of our layers."""

CLIENT = """
import asyncio, sys
import protocol, shuffle
from sluice import HashSelector, ResultPartitionType, ShuffleClient, StringSerializer

assert protocol.MINE and shuffle.MINE

async def main(endpoint):
    async with await ShuffleClient.connect(endpoint, "words") as client:
        async with client.open_result_partition(1, 0, 2) as partition:
            assert ResultPartitionType.BLOCKING in ResultPartitionType
            writer = partition.record_writer(StringSerializer(), HashSelector(str.encode))
            for word in ("to", "be", "or", "not"):
                if (pending := writer.emit(word)) is not None:
                    await pending
        words = []
        for subpartition in range(2):
            async with client.open_gate([partition.location], subpartition) as gate:
                words += [word async for word in gate.records(StringSerializer())]
        print(*sorted(words))

asyncio.run(main(sys.argv[1]))
"""

JOB = """
import protocol, shuffle
from pyspark.sql import SparkSession

assert protocol.MINE and shuffle.MINE
spark = SparkSession.builder.getOrCreate()
rows = spark.sparkContext.parallelize(range(1000), 4).map(lambda n: (n % 7, 1))
print("counts", sorted(rows.reduceByKey(lambda a, b: a + b, 3).collect()))
print("manager", spark.sparkContext._jsc.sc().conf().get("spark.shuffle.manager"))
"""


def run(command: Sequence[object], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the checkout's import path; fail with what it printed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONSAFEPATH", "PYSPARK_PYTHON", "VIRTUAL_ENV"}
    }
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        env=environment,
        cwd=cwd,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


class Built(NamedTuple):
    """The two files that a publisher uploads."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    jar_path()  # says what to do where it is missing
    output = tmp_path_factory.mktemp("dist")
    # The sdist first, and the wheel out of the sdist: so the sdist is known to be complete.
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", output, ROOT])
    (wheel,) = output.glob("*.whl")
    (sdist,) = output.glob("*.tar.gz")
    return Built(wheel, sdist)


class Installation(NamedTuple):
    """A new environment with the wheel in it, and the folder of a user's program."""

    bin: Path
    site_packages: Path
    before: set[str]
    folder: Path


@pytest.fixture(scope="session")
def installation(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = directory / "lib" / version / "site-packages"
    # Dependencies come from this environment; a plain path runs no .pth file of it, so that the
    # editable install of this checkout stays unseen.
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    before = {path.name for path in site_packages.iterdir()}
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run([*pip, built.wheel])
    folder = tmp_path_factory.mktemp("program")
    for name in ("protocol", "shuffle", "transport", "spark_integration"):
        (folder / f"{name}.py").write_text(USERS_MODULE)
    (folder / "client.py").write_text(CLIENT)
    (folder / "job.py").write_text(JOB)
    return Installation(directory / "bin", site_packages, before, folder)


def test_site_packages_gets_one_import_package(installation: Installation) -> None:
    added = {path.name for path in installation.site_packages.iterdir()} - installation.before
    assert {name for name in added if not name.endswith(".dist-info")} == {"sluice"}
    assert (installation.site_packages / JAR).is_file()
    assert (installation.site_packages / "sluice" / "py.typed").is_file()
    assert not list(installation.site_packages.glob("sluice/spark_integration/jvm"))


def test_wheel_and_sdist_contain_jar_and_license(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        assert JAR in names
        assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names}
    with tarfile.open(built.sdist) as sdist:
        members = {name.partition("/")[2] for name in sdist.getnames()}
        assert not [member.name for member in sdist.getmembers() if member.issym()]
    assert {JAR, "LICENSE", "NOTICE", "pyproject.toml"} <= members


def test_wheel_and_sdist_contain_the_files_of_the_status_page(built: Built) -> None:
    folder = "sluice/shuffle/taskmanager/http/pages"
    expected = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
    assert expected
    with zipfile.ZipFile(built.wheel) as wheel:
        assert expected <= set(wheel.namelist())
    with tarfile.open(built.sdist) as sdist:
        assert expected <= {name.partition("/")[2] for name in sdist.getnames()}


def test_checkers_accept_both_distributions(built: Built) -> None:
    run([sys.executable, "-m", "twine", "check", "--strict", *built])
    run([sys.executable, "-m", "check_wheel_contents", built.wheel])


def test_without_the_jar_nothing_is_built(tmp_path: Path) -> None:
    """A clean clone has no jar: the build fails with the command that makes it."""
    clone = tmp_path / "clone"
    files = run(["git", "-C", ROOT, "ls-files"]).stdout.splitlines()
    wanted = ("sluice/", "protocol/__init__.py", "shuffle/__init__.py", "transport/__init__.py",
              "spark_integration/__init__.py", "pyproject.toml", "hatch_build.py", "README.md",
              "LICENSE", "NOTICE", "CHANGELOG.md")  # fmt: skip
    for name in files:
        if name.startswith(wanted) and (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, clone / name, follow_symlinks=False)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        f"{tmp_path}",
        f"{clone}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode != 0
    assert "make jar" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_a_client_and_a_taskmanager_run_beside_modules_of_the_same_names(
    installation: Installation, tmp_path: Path
) -> None:
    options = ["--data-port", "0", "--http-port", "0", "--socket-path", f"{tmp_path}/tm.sock",
               "--data-directories", tmp_path / "data", "--memory-directory", tmp_path / "memory",
               "--network-segments", "256", "--memory-tier-bytes", "16MiB"]  # fmt: skip
    sluice = installation.bin / "sluice"
    with subprocess.Popen(
        [str(word) for word in (sluice, "taskmanager", *options)],
        cwd=installation.folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as taskmanager:
        try:
            assert taskmanager.stderr is not None
            for line in taskmanager.stderr:
                if "is ready" in line:
                    break
            else:
                pytest.fail(f"it ended with {taskmanager.wait()}")
            python = installation.bin / "python"
            said = run([python, "client.py", f"unix:{tmp_path}/tm.sock"], cwd=installation.folder)
            assert said.stdout == "be not or to\n"
        finally:
            taskmanager.terminate()
            _, rest = taskmanager.communicate(timeout=30)
    assert taskmanager.returncode == 0, rest


@pytest.mark.extended
@pytest.mark.spark
def test_a_job_is_submitted_beside_modules_of_the_same_names(installation: Installation) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    options = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command = [installation.bin / "sluice", "submit", "--", *options, "job.py"]
    done = run(command, cwd=installation.folder)
    counts = dict(re.findall(r"\((\d), (\d+)\)", done.stdout))
    assert sum(int(count) for count in counts.values()) == 1000
    assert "manager io.sluice.spark.SluiceShuffleManager" in done.stdout
