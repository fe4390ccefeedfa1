"""Prints the dependencies that pyproject.toml names, those of the extras given as arguments too.

The image build installs them before it copies the sources, so that they are installed again only
when this list changes.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one requirement per line."""
    with Path("pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    requirements = list(project["dependencies"])
    for extra in sys.argv[1:]:
        requirements += project["optional-dependencies"][extra]
    sys.stdout.write("\n".join(requirements) + "\n")


if __name__ == "__main__":
    main()
