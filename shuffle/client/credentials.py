"""Finds a client's credential: in an argument, a variable of the environment, or a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...protocol.identity import Credential, InvalidCredential, parse_credential

CREDENTIAL_VARIABLE: Final = "SLUICE_CREDENTIAL"
CREDENTIAL_FILE_VARIABLE: Final = "SLUICE_CREDENTIAL_FILE"

_MAX_FILE_BYTES: Final = 4096


def client_credential(
    given: str | Credential | None, application_id: str, environment: Mapping[str, str]
) -> Credential | None:
    """Return the credential of an application's tasks; None without one.

    Args:
        given: A credential, or the text of one; it comes before the environment.
        application_id: The application; a submit token gives each one a credential of its own.
        environment: Variables of the environment.

    Raises:
        InvalidCredential: The text is not a credential, or the file cannot be read.
    """
    if isinstance(given, Credential):
        return given.for_tasks()
    text = given
    if text is None:
        text = environment.get(CREDENTIAL_VARIABLE) or None
    if text is None and environment.get(CREDENTIAL_FILE_VARIABLE):
        text = read_credential_file(Path(environment[CREDENTIAL_FILE_VARIABLE]))
    return None if text is None else parse_credential(text, application_id).for_tasks()


def read_credential_file(path: Path) -> str:
    """Return the text of a file that holds a credential.

    Raises:
        InvalidCredential: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError as error:
        raise InvalidCredential(
            "The file of a credential cannot be read",
            value=f"{path}: {error.strerror or error}",
            remedy=f"Correct {CREDENTIAL_FILE_VARIABLE}, or let this user read the file",
        ) from error
