"""Write the bills of materials of wheel, jar and images as CycloneDX JSON (``make sbom``).

The Python parts are the distributions of the development environment that a lock file names, with
its hashes: `make setup` installs exactly these versions. The image itself lists its Debian packages
if an engine has it; otherwise the file says that they are not listed, and names the base image by
its digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

from tools.supply.lock import ROOT

Json: TypeAlias = dict[str, Any]

OUTPUT = ROOT / "build" / "sbom"
JAR = ROOT / "spark_integration" / "jars" / "sluice-spark.jar"
JVM = ROOT / "spark_integration" / "jvm"
DEBIAN_PACKAGES = "sluice:debian-packages"
"""Property of an image's file: the source of its list of Debian packages."""

_ROOT = "root-component"
_IMAGES = {
    "taskmanager": ("SLUICE_IMAGE", "sluice"),
    "spark": ("SLUICE_SPARK_IMAGE", "sluice-spark"),
}
_ENGINE_SECONDS = 60
_BASE_IMAGE = re.compile(
    r"^ARG PYTHON_IMAGE=(?P<name>[^:@\s]+):(?P<tag>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})$",
    re.MULTILINE,
)


def locked(path: Path) -> dict[str, list[str]]:
    """Return the SHA-256 of each distribution of a lock file, by normalised name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            name = normalised(line.split("==")[0])
        if digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            found.setdefault(name, []).append(digest[1])
    return found


def normalised(name: str) -> str:
    """Return a distribution's name as the index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def restricted(environment: Json, lock: dict[str, list[str]]) -> Json:
    """Keep the components that a lock file names, and add its hashes.

    Args:
        environment: Bill of materials of the development environment.
        lock: As ``locked`` returns it.
    """
    components = []
    for component in environment["components"]:
        name = normalised(component["name"])
        if name in lock:
            distribution = {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{name}/",
                "comment": "the index's files of this version, as pinned in requirements/",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in lock[name]],
            }
            references = [*component.get("externalReferences", ()), distribution]
            components.append({**component, "externalReferences": references})
    kept = {component["bom-ref"] for component in components} | {_ROOT}
    dependencies = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in kept]}
        for each in environment["dependencies"]
        if each["ref"] in kept
    ]
    return {**environment, "components": components, "dependencies": dependencies}


def image_bom(name: str, wheel: Json, dockerfile: str, packages: list[Json] | str) -> Json:
    """Compose an image: its base, Sluice, Python distributions and Debian packages.

    Args:
        name: The image's stage in the Dockerfile.
        wheel: The bill of materials of the image's lock file.
        dockerfile: The text that names the base image.
        packages: Components of the Debian packages, or the reason why they are not listed.

    Raises:
        ValueError: The Dockerfile does not name a base image with a digest.
    """
    base = _BASE_IMAGE.search(dockerfile)
    if base is None:
        raise ValueError("the Dockerfile has no line ARG PYTHON_IMAGE=NAME:TAG@sha256:DIGEST")
    digest = base["digest"]
    purl = f"pkg:oci/{base['name']}@{digest.replace(':', '%3A')}?tag={base['tag']}"
    base_image = {
        "bom-ref": purl,
        "type": "container",
        "name": base["name"],
        "version": base["tag"],
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    sluice = {**wheel["metadata"]["component"], "bom-ref": "sluice-shuffle", "type": "library"}
    listed = [] if isinstance(packages, str) else packages
    told = f"not listed: {packages}" if isinstance(packages, str) else "listed by the image"
    dependencies = [
        {**each, "ref": "sluice-shuffle"} if each["ref"] == _ROOT else each
        for each in wheel["dependencies"]
    ]
    root = {
        "bom-ref": _ROOT,
        "type": "container",
        "name": f"sluice-{name}",
        "version": sluice["version"],
    }
    return {
        **wheel,
        "metadata": {
            **wheel["metadata"],
            "component": root,
            "properties": [{"name": DEBIAN_PACKAGES, "value": told}],
        },
        "components": [base_image, sluice, *wheel["components"], *listed],
        "dependencies": [{"ref": _ROOT, "dependsOn": [purl, "sluice-shuffle"]}, *dependencies],
    }


def debian_components(listing: str) -> list[Json]:
    """Make components from ``dpkg-query``'s lines of name, version and architecture."""
    components = []
    for line in listing.splitlines():
        name, version, architecture = line.split("\t")
        # Versions contain "+" and ":", which have a meaning in a purl.
        quoted = version.replace("+", "%2B").replace(":", "%3A")
        purl = f"pkg:deb/debian/{name}@{quoted}?arch={architecture}"
        components.append(
            {"bom-ref": purl, "type": "library", "name": name, "version": version, "purl": purl}
        )
    return components


def check(bom: Json) -> str:
    """Return a bill of materials as text.

    Raises:
        ValueError: It is not CycloneDX 1.6.
    """
    # Only the environment of these tools has it; tests use the functions above without it.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = json.dumps(bom, indent=2, sort_keys=True) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"this is not CycloneDX 1.6: {error}")
    return text


def main() -> int:
    """Write all files into build/sbom and name them."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    environment = _environment()
    jar = _jar()
    python = {
        name: restricted(environment, locked(ROOT / "requirements" / f"{name}.txt"))
        for name in _IMAGES
    }
    # The wheel contains the jar, and the jar its shaded dependencies.
    inside = {**jar["metadata"]["component"], "components": jar["components"]}
    for bom in python.values():
        bom["metadata"]["component"]["components"] = [inside]
    dockerfile = (ROOT / "Dockerfile").read_text()
    boms = {"wheel": python["taskmanager"], "jar": jar}
    for name in _IMAGES:
        bom = image_bom(name, python[name], dockerfile, _packages(name))
        told = bom["metadata"]["properties"][0]["value"]
        sys.stdout.write(f"Debian packages of the image {name}: {told}\n")
        boms[f"image-{name}"] = bom
    for name, bom in boms.items():
        path = OUTPUT / f"{name}.cdx.json"
        path.write_text(check(bom))
        count = len(bom["components"])
        sys.stdout.write(f"{path.relative_to(ROOT)}: {count} components\n")
    return 0


def _environment() -> Json:
    command = [
        *(Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-reproducible"),
        *("--pyproject", ROOT / "pyproject.toml", ROOT / ".venv" / "bin" / "python"),
    ]
    bom: Json = json.loads(_run(command))
    return bom


def _jar() -> Json:
    goal = "org.cyclonedx:cyclonedx-maven-plugin:makeBom"
    _run(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", JVM / "pom.xml", goal])
    bom: Json = json.loads((JVM / "target" / "sbom.json").read_text())
    content = hashlib.sha256(JAR.read_bytes()).hexdigest()
    bom["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": content}]
    return bom


def _packages(name: str) -> list[Json] | str:
    """Ask the image for its Debian packages; return the reason if that fails."""
    variable, usual = _IMAGES[name]
    image = os.environ.get(variable, usual)
    if shutil.which("docker") is None:
        return "there is no docker command here"
    command = ["docker", "run", "--rm", "--pull", "never", "--network", "none"]
    command += ["--entrypoint", "dpkg-query", image, "--show"]
    command += ["--showformat", "${Package}\\t${Version}\\t${Architecture}\\n"]
    try:
        return debian_components(_run(command, timeout=_ENGINE_SECONDS))
    except subprocess.CalledProcessError:
        return f"no engine answers, or it has no image {image}: build it, or set {variable}"
    except subprocess.TimeoutExpired:
        return f"the engine did not answer within {_ENGINE_SECONDS} s"


def _run(command: list[Any], timeout: float | None = None) -> str:
    words = [str(word) for word in command]
    quiet = subprocess.PIPE if timeout is not None else None
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=quiet, text=True, check=True, timeout=timeout
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
