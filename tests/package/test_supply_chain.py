"""Everything that is fetched is pinned by a digest, and the tools that say so do not lie."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compose.images import public_images
from tools.supply import audit, maven, sbom
from tools.supply.lock import LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILES = [ROOT / path for path in LOCKS]
WHOLE = ROOT / "requirements" / "development.txt"
DOCKERFILES = [ROOT / "Dockerfile", *(ROOT / "tests" / "compose").glob("*.Dockerfile")]
DIGEST = re.compile(r"^[^:@\s]+:[^@\s]+@sha256:[0-9a-f]{64}$")
POM = "{http://maven.apache.org/POM/4.0.0}"


def requirements(path: Path) -> dict[str, str]:
    """The logical lines of a lock file, by what stands before the hashes."""
    lines = re.sub(r"\\\n\s*", "", path.read_text()).splitlines()
    pinned = [line for line in lines if line and not line.lstrip().startswith("#")]
    return {line.split(" --hash=")[0].strip(): line for line in pinned}


def names(dependencies: list[str]) -> set[str]:
    """The distributions that a list of pyproject.toml names."""
    return {sbom.normalised(re.split(r"[^\w.-]", each)[0]) for each in dependencies}


@pytest.mark.parametrize("path", LOCK_FILES, ids=lambda path: path.stem)
def test_every_requirement_is_one_version_with_its_hashes(path: Path) -> None:
    found = requirements(path)
    assert found
    for pinned, line in found.items():
        assert re.match(r"^[\w.-]+==[\w.!+]+( ; |$)", pinned), pinned
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", line), pinned


def test_each_requirements_file_is_a_lock_file() -> None:
    assert set((ROOT / "requirements").iterdir()) == set(LOCK_FILES)


@pytest.mark.parametrize("name", ["build", "taskmanager", "spark"])
def test_images_and_builds_take_the_distributions_of_the_development_environment(
    name: str,
) -> None:
    whole = {key.split(" ;")[0]: line for key, line in requirements(WHOLE).items()}
    for pinned, line in requirements(ROOT / "requirements" / f"{name}.txt").items():
        of_whole = whole[pinned.split(" ;")[0]]
        assert re.findall(r"sha256:\w+", line) == re.findall(r"sha256:\w+", of_whole), pinned


def test_each_dependency_of_the_project_is_locked() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        content = tomllib.load(file)
    project, groups = content["project"], content["dependency-groups"]
    extras = project["optional-dependencies"]
    always = names(project["dependencies"])
    expected = {
        "development": always.union(names(groups["build"]), *map(names, extras.values())),
        "build": names(groups["build"]) | names(content["build-system"]["requires"]),
        "taskmanager": always | names(extras["remote"]),
        "spark": always | names(extras["spark"]),
        "supply-chain": names(groups["supply-chain"]),
    }
    for name, wanted in expected.items():
        assert wanted <= set(sbom.locked(ROOT / "requirements" / f"{name}.txt")), name
    (mypyc,) = content["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"][
        "dependencies"
    ]
    assert mypyc in groups["build"]


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "tests/compose/images.py"])
def test_pip_installs_nothing_without_its_hash(name: str) -> None:
    """Or nothing but what lies there already; and never in an isolated build."""
    text = (ROOT / name).read_text().replace("\\\n", " ").replace('", "', " ")
    commands = re.findall(r"\bpip[\"']? (?:install|wheel|download)\b.*(?:\n +\*\(.*)*", text)
    assert commands
    for command in commands:
        for each in re.split(r"&&", command):
            if not re.search(r"\bpip[\"']? (install|wheel|download)\b", each):
                continue
            fetches = "--no-index" not in each and "--no-deps" not in each
            assert "--require-hashes" in each or not fetches, each
            wheels_only = "--only-binary :all:" in each or "requirements/supply-chain.txt" in each
            local = "--no-index" in each or "/wheels/*.whl" in each
            assert "--no-build-isolation" in each or wheels_only or local, each


def stages(text: str) -> Iterator[tuple[str, str | None]]:
    """Each FROM of a Dockerfile: the image, with the default of its argument, and its name."""
    defaults = dict(re.findall(r"^ARG (\w+)(?:=(\S+))?$", text, re.MULTILINE))
    for image, name in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE):
        argument = re.fullmatch(r"\$\{(\w+)\}", image)
        yield (defaults[argument[1]] if argument else image), name or None


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_public_image_of_a_dockerfile_has_its_digest(path: Path) -> None:
    text = path.read_text()
    assert len(re.findall(r"^\s*FROM\b", text, re.MULTILINE | re.IGNORECASE)) == len(
        list(stages(text))
    )
    known: set[str | None] = set()
    for image, name in stages(text):
        # An argument without a default names an image that the caller made.
        assert image in known or image == "" or DIGEST.match(image), image
        known.add(name)


def test_every_public_image_of_the_stack_has_its_digest() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    built = {"${SLUICE_IMAGE:-sluice}", "${SLUICE_SPARK_IMAGE:-sluice-spark}"}
    images = set(re.findall(r"^\s*image: (\S+)$", text, re.MULTILINE))
    assert built < images
    for image in images - built:
        default = re.fullmatch(r"\$\{\w+:-(.*)\}", image)
        assert DIGEST.match(default[1] if default else image), image


def test_the_stack_and_the_dockerfile_have_one_base_image() -> None:
    found = sbom._BASE_IMAGE.search((ROOT / "Dockerfile").read_text())
    assert found is not None
    assert found[0] == f"ARG PYTHON_IMAGE={public_images()['PYTHON_IMAGE']}"


def test_maven_refuses_unlisted_files() -> None:
    options = (maven.JVM / ".mvn" / "maven.config").read_text().splitlines()
    switch = "-Daether.artifactResolver.postProcessor.trustedChecksums"
    assert "--strict-checksums" in options
    assert {f"{switch}=true", f"{switch}.failIfMissing=true"} <= set(options)
    assert f"{switch}.checksumAlgorithms=SHA-256" in options


def test_the_list_for_maven_has_each_dependency_and_plugin_of_the_pom() -> None:
    sums = maven.read_sums()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in sums.values())
    pom = ET.parse(maven.JVM / "pom.xml").getroot()
    properties = {
        each.tag.removeprefix(POM): each.text for each in pom.findall(f"{POM}properties/*")
    }
    for each in [*pom.iter(f"{POM}dependency"), *pom.iter(f"{POM}plugin"), *pom.iter(f"{POM}path")]:
        group, name, version = (
            each.findtext(f"{POM}{tag}", "") for tag in ("groupId", "artifactId", "version")
        )
        version = re.sub(r"\$\{(.*)\}", lambda found: str(properties[found[1]]), version)
        path = f"{group.replace('.', '/')}/{name}/{version}/{name}-{version}"
        assert {f"{path}.pom", f"{path}.jar"} <= set(sums), path


def test_a_changed_file_of_maven_is_reported(tmp_path: Path) -> None:
    sums = {
        name: hashlib.sha256(name.encode()).hexdigest() for name in ("a/a.jar", "b/b.pom", "c.jar")
    }
    with pytest.raises(FileNotFoundError, match=r"maven\.repo\.local"):
        maven.verify(tmp_path, sums)
    for name in ("a/a.jar", "b/b.pom"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    assert maven.verify(tmp_path, sums) == []
    (tmp_path / "a/a.jar").write_text("a/a.jar, and something more")
    assert maven.verify(tmp_path, sums) == ["a/a.jar"]


def test_maven_is_asked_where_it_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MAVEN_OPTS", raising=False)
    monkeypatch.delenv("MAVEN_ARGS", raising=False)
    assert maven.local_repository() == tmp_path / ".m2/repository"
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2/settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">'
        "<localRepository>${user.home}/elsewhere</localRepository></settings>"
    )
    assert maven.local_repository() == tmp_path / "elsewhere"
    monkeypatch.setenv("MAVEN_OPTS", "-Xmx1g -Dmaven.repo.local=/told")
    assert maven.local_repository() == Path("/told")


FAKE_PIP_AUDIT = """
import json, re, sys
behaviour = json.loads({behaviour!r})
service = sys.argv[sys.argv.index("--vulnerability-service") + 1]
lines = open(sys.argv[sys.argv.index("--requirement") + 1]).read()
kind = behaviour[service]
if kind == "unreachable":
    sys.exit("requests.exceptions.ConnectionError: no route")
dependencies = []
for name, version in re.findall(r"^([\\w.-]+)==([\\w.]+)", lines, re.MULTILINE):
    known = [dict(id="X-1", fix_versions=["9"])]
    bad = kind != "ignorant" and name == "jinja2" and version == "2.4.1"
    bad = bad or (kind == "vulnerable" and name == "aiohttp")
    if kind == "partial" and name == "aiohttp":
        dependencies.append(dict(name=name, skip_reason="not found"))
    else:
        dependencies.append(dict(name=name, version=version, vulns=known if bad else []))
print(json.dumps(dict(dependencies=dependencies, fixes=[])))
"""


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "said"),
    [
        ("clean", "unreachable", audit.CLEAN, "pypi knows no vulnerabilities"),
        ("vulnerable", "clean", audit.VULNERABLE, "X-1, fixed in 9"),
        ("unreachable", "clean", audit.CLEAN, "osv knows no vulnerabilities"),
        ("ignorant", "vulnerable", audit.VULNERABLE, "osv knows 1 vulnerabilities"),
        ("partial", "unreachable", audit.NO_ANSWER, "NOT AUDITED"),
        ("ignorant", "unreachable", audit.NO_ANSWER, "NOT AUDITED"),
        ("unreachable", "unreachable", audit.NO_ANSWER, "NOT AUDITED"),
    ],
)
def test_an_audit_is_clean_only_if_a_service_knew_everything(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pypi: str,
    osv: str,
    code: int,
    said: str,
) -> None:
    script = tmp_path / "pip_audit.py"
    script.write_text(FAKE_PIP_AUDIT.format(behaviour=json.dumps({"pypi": pypi, "osv": osv})))
    assert audit.main([sys.executable, str(script)]) == code
    out, err = capsys.readouterr()
    assert said in (err if code == audit.NO_ANSWER else out)
    if code == audit.NO_ANSWER:
        assert "knows no vulnerabilities" not in out + err
        assert err.count("\n") == 1


def environment_bom() -> dict[str, Any]:
    """What cyclonedx-py writes of an environment, reduced: a dependency, its own, and a tool."""
    return {
        "metadata": {"component": {"bom-ref": "root-component", "name": "x", "version": "1"}},
        "components": [
            {"bom-ref": f"{name}==1", "name": name, "version": "1", "type": "library"}
            for name in ("Used_Here", "its.own", "tool")
        ],
        "dependencies": [
            {"ref": "root-component", "dependsOn": ["Used_Here==1", "tool==1"]},
            {"ref": "Used_Here==1", "dependsOn": ["its.own==1"]},
            {"ref": "tool==1"},
        ],
    }


def test_an_sbom_has_the_packages_and_hashes_of_the_lock_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"# made\nits-own==1 ; python_version < '4' \\\n    --hash=sha256:{'1' * 64}\n"
        f"used-here==1 \\\n    --hash=sha256:{'2' * 64} \\\n    --hash=sha256:{'3' * 64}\n"
    )
    bom = sbom.restricted(environment_bom(), sbom.locked(lock))
    found = {
        each["name"]: [digest["content"][0] for digest in each["externalReferences"][-1]["hashes"]]
        for each in bom["components"]
    }
    assert found == {"Used_Here": ["2", "3"], "its.own": ["1"]}
    assert bom["dependencies"] == [
        {"ref": "root-component", "dependsOn": ["Used_Here==1"]},
        {"ref": "Used_Here==1", "dependsOn": ["its.own==1"]},
    ]


def test_the_sbom_of_an_image_names_its_base_and_its_package_sources() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    digest = public_images()["PYTHON_IMAGE"].rpartition("sha256:")[2]
    without = sbom.image_bom("spark", environment_bom(), dockerfile, "nobody has the image")
    assert without["components"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert without["metadata"]["properties"] == [
        {"name": sbom.DEBIAN_PACKAGES, "value": "not listed: nobody has the image"}
    ]
    packages = sbom.debian_components("libc6\t2.36-9+deb12u10\tamd64\n")
    assert packages[0]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"
    listed = sbom.image_bom("spark", environment_bom(), dockerfile, packages)
    assert listed["components"][-1] == packages[0]
    assert listed["metadata"]["properties"][0]["value"] == "listed by the image"
    refs = {each["bom-ref"] for each in listed["components"]} | {"root-component"}
    assert {ref for each in listed["dependencies"] for ref in each.get("dependsOn", ())} <= refs
    with pytest.raises(ValueError, match="ARG PYTHON_IMAGE"):
        sbom.image_bom("spark", environment_bom(), "FROM python:3.11\n", "no image")


@pytest.mark.parametrize("name", ["wheel", "jar", "image-taskmanager", "image-spark"])
def test_written_sboms_belong_to_this_tree(name: str) -> None:
    path = sbom.OUTPUT / f"{name}.cdx.json"
    if not path.is_file():
        pytest.skip("`make sbom` writes it")
    if path.stat().st_mtime < max(each.stat().st_mtime for each in LOCK_FILES):
        pytest.skip(f"{path.name} is older than the lock files: `make sbom` renews it")
    bom = json.loads(path.read_text())
    if name == "jar":
        assert [each["name"] for each in bom["components"]] == ["msgpack-core"]
        return
    lock = "spark" if name == "image-spark" else "taskmanager"
    hashes = sbom.locked(ROOT / "requirements" / f"{lock}.txt")
    written = {
        sbom.normalised(each["name"]): each["version"]
        for each in bom["components"]
        if each.get("purl", "").startswith("pkg:pypi/")
    }
    assert set(written) == set(hashes)
    pinned = requirements(ROOT / "requirements" / f"{lock}.txt")
    for distribution, version in written.items():
        assert any(each.startswith(f"{distribution}=={version}") for each in pinned)
