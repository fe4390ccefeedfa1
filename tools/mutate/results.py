"""The outcomes so far, in a file, so that a run that was interrupted goes on.

An outcome holds as long as what it depends on is the same: a kill depends on the module and on the
test that failed, a survival on all code and all tests.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from tools.mutate.operators import Mutation

Verdict: TypeAlias = Literal["killed", "survived"]


class Result(NamedTuple):
    """The outcome of one mutation.

    Args:
        verdict: Whether a test noticed it.
        by: The test; for a survivor the number of tests that did not.
    """

    verdict: Verdict
    by: str


class Results:
    """Outcomes by mutation, kept in a file of one JSON object a line.

    Args:
        path: The file.
        root: The checkout.
        digest: Of all code and all tests.
    """

    def __init__(self, path: Path, root: Path, digest: str) -> None:
        self._path = path
        self._root = root
        self._digest = digest
        self._found: dict[str, Result] = {}
        self.tried: set[str] = set()
        """Mutations with an outcome, whether or not it still holds."""
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.tried.add(entry["key"])
                result = Result(entry["verdict"], entry["by"])
                self._found.pop(entry["key"], None)  # an earlier one
                if entry["on"] == self._depends_on(entry["module"], result):
                    self._found[entry["key"]] = result

    def of(self, mutation: Mutation) -> Result | None:
        """Return the outcome of a mutation; None if there is none that still holds."""
        return self._found.get(mutation.key)

    def add(self, mutation: Mutation, verdict: Verdict, by: str) -> None:
        """Keep an outcome."""
        result = Result(verdict, by)
        self._found[mutation.key] = result
        entry = {
            "key": mutation.key,
            "module": mutation.module,
            "on": self._depends_on(mutation.module, result),
            **result._asdict(),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _depends_on(self, module: str, result: Result) -> str:
        if result.verdict == "survived":
            return self._digest
        digest = hashlib.sha256()
        for name in (module, result.by.partition("::")[0]):
            path = self._root / name
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()[:16]
