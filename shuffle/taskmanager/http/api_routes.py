"""The table of the HTTP port's routes: what each takes, answers and needs.

The description in the form of OpenAPI is made from it, see :mod:`openapi`. A test compares it with
the routes that the server has. A new route is one row here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ....protocol.access_token import SCOPE_ADMIN, SCOPE_STATUS

JSON: Final = "application/json"
METRICS: Final = "text/plain"
HTML: Final = "text/html"
EVENTS: Final = "text/event-stream"


class Parameter(NamedTuple):
    """A parameter of the query, or of the path if that names it in braces.

    Attributes:
        name: Its name.
        schema: JSON schema of its value.
        meaning: A sentence.
    """

    name: str
    schema: dict[str, Any]
    meaning: str


class Reply(NamedTuple):
    """An answer with one status code.

    Attributes:
        code: The status code.
        meaning: A sentence.
        schema: Name of the schema of the JSON body; empty: the body is not JSON of a known form.
        media_type: Type of the body.
    """

    code: int
    meaning: str
    schema: str = ""
    media_type: str = JSON


class Route(NamedTuple):
    """A route. Answers that follow from its scope and body are not repeated in it.

    Attributes:
        method: In capitals.
        path: From the slash.
        summary: An imperative sentence.
        replies: The answers of its own.
        scope: The scope that an access token must have; empty: everybody may ask.
        parameters: Those of the path, then those of the query.
        body: Name of the schema of the JSON body that it needs; empty: it needs none.
        asks_data_loop: Whether it answers 503 when the data loop does not answer.
    """

    method: str
    path: str
    summary: str
    replies: tuple[Reply, ...]
    scope: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    asks_data_loop: bool = True


_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}

_NUMBERS: Final = Reply(200, "The metrics, or OpenMetrics if asked for.", media_type=METRICS)

ROUTES: Final = (
    Route("GET", "/metrics", "Return the metrics for Prometheus.", (_NUMBERS,)),
    Route(
        "GET",
        "/metrics/applications",
        "Return the metrics by application, with names.",
        (_NUMBERS,),
        SCOPE_STATUS,
    ),
    Route(
        "GET",
        "/healthz",
        "Report whether the process serves; restart it when this fails.",
        (
            Reply(200, "It serves.", "Health"),
            Reply(503, "It has stopped, or the data loop does not answer.", "Health"),
        ),
        asks_data_loop=False,
    ),
    Route(
        "GET",
        "/readyz",
        "Report whether the TaskManager should get new work.",
        (
            Reply(200, "It should.", "Readiness"),
            Reply(503, "It should not, and why.", "Readiness"),
        ),
        asks_data_loop=False,
    ),
    Route(
        "GET",
        "/api/v1/status",
        "Return the whole status, with names of applications.",
        (Reply(200, "The status.", "TaskManagerStatus"),),
        SCOPE_STATUS,
    ),
    Route(
        "GET",
        "/api/v1/events",
        "Send the status as server-sent events, about one a second.",
        (
            Reply(
                200,
                "An event `status` is a TaskManagerStatus; an event `silent` has the error.",
                media_type=EVENTS,
            ),
            Reply(503, "There are too many streams.", "Error"),
        ),
        SCOPE_STATUS,
        asks_data_loop=False,
    ),
    Route(
        "GET",
        "/api/v1/cluster",
        "Return this TaskManager and the other members of its cluster.",
        (Reply(200, "A row for each member.", "ClusterStatus"),),
        SCOPE_STATUS,
    ),
    Route(
        "GET",
        "/api/v1/shuffles/{application}/{shuffle}",
        "Return map outputs and regions of a shuffle.",
        (
            Reply(200, "A page of map outputs.", "ShufflePage"),
            Reply(400, "A parameter is malformed.", "Error"),
            Reply(404, "No application has the name, or several have it.", "Error"),
            Reply(503, "The data loop does not answer, or other requests took too long.", "Error"),
        ),
        SCOPE_STATUS,
        (
            Parameter("application", {"type": "string", "minLength": 1}, "Its name."),
            Parameter("shuffle", _NUMBER, "The number of the shuffle."),
            Parameter("first", {**_NUMBER, "default": 0}, "The first map attempt of the page."),
            Parameter(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
                "Maximum number of map outputs on the page.",
            ),
        ),
    ),
    Route(
        "GET",
        "/api/v1/openapi.json",
        "Return this description.",
        (Reply(200, "The description, in the form of OpenAPI 3.1.", "Description"),),
        asks_data_loop=False,
    ),
    Route(
        "POST",
        "/api/v1/drain",
        "Take no new map outputs; answer when nothing is written or read.",
        (
            Reply(200, "It drains; busy if transfers run after the wait.", "Drained"),
            Reply(400, "A parameter is malformed.", "Error"),
        ),
        SCOPE_ADMIN,
        (
            Parameter(
                "wait_seconds",
                {"type": "number", "default": 0},
                "Maximum wait in seconds, up to 3600.",
            ),
            Parameter(
                "migrate",
                {"type": "boolean", "default": False},
                "Whether all map outputs move to other TaskManagers.",
            ),
        ),
    ),
    Route(
        "POST",
        "/api/v1/undrain",
        "Take new map outputs again, unless the TaskManager stops.",
        (Reply(200, "The state of the TaskManager.", "Undrained"),),
        SCOPE_ADMIN,
    ),
    Route(
        "PUT",
        "/api/v1/log-level",
        "Change the minimum log level until the next SIGHUP or start.",
        (Reply(200, "The log level from now on.", "LogLevel"),),
        SCOPE_ADMIN,
        body="LogLevel",
    ),
    Route(
        "PUT",
        "/api/v1/quotas",
        "Change quotas until the next SIGHUP or start; keys left out keep their values.",
        (Reply(200, "All quotas from now on.", "Quotas"),),
        SCOPE_ADMIN,
        body="Quotas",
    ),
    *(
        Route(
            "GET",
            path,
            summary,
            (Reply(200, "The file; it has no data.", media_type=media_type),),
            asks_data_loop=False,
        )
        for path, summary, media_type in (
            ("/", "Return the status page of this TaskManager.", HTML),
            ("/cluster", "Return the page of the cluster.", HTML),
            ("/pages/page.js", "Return the script of both pages.", "text/javascript"),
            ("/pages/page.css", "Return the style sheet of both pages.", "text/css"),
            ("/pages/icon.svg", "Return the icon of both pages.", "image/svg+xml"),
        )
    ),
)
