"""An operator who searches the site finds a page of instructions before a design decision."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from html import unescape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.docs.examples import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

BUILD_SECONDS: Final = 300
pytestmark = [
    pytest.mark.xdist_group("docs"),
    pytest.mark.timeout(BUILD_SECONDS + 60),
]

TITLE: Final = 2000.0
HEADING: Final = 1000.0
TEXT: Final = 1.0
SATURATION: Final = 1.2
LENGTH_PART: Final = 0.75
STOP_WORDS: Final = frozenset({"a", "an", "and", "for", "in", "of", "on", "the", "to"})
INSTRUCTIONS: Final = ("guide", "operate")


class Entry(NamedTuple):
    """A page or a section of the search index."""

    page: str
    heading_weight: float
    heading: list[str]
    text: list[str]
    boost: float


def words(html: str) -> list[str]:
    text = unescape(re.sub(r"<[^>]+>", " ", html)).lower()
    return [word for word in re.findall(r"\w+", text) if word not in STOP_WORDS]


def entry(document: dict[str, Any]) -> Entry:
    page, _, anchor = document["location"].partition("#")
    weight = HEADING if anchor else TITLE
    boost = float(document.get("boost", 1))
    return Entry(page, weight, words(document["title"]), words(document["text"]), boost)


def ranking(entries: Sequence[Entry], query: str) -> list[str]:
    """Return the pages that match a query, best first.

    This is Okapi BM25 on two fields, as the search of the site does it: a word matches those that
    begin with it, a rare word counts more than a common one, and a heading counts a thousand times
    its text. The page counts as its best section. What the browser adds is left out, such as
    tolerance for typing errors.
    """
    by_term = _scores(entries, words(query))
    best: dict[str, float] = {}
    for each, *scores in zip(entries, *by_term, strict=True):
        best[each.page] = max(best.get(each.page, 0.0), each.boost * sum(scores))
    return sorted((page for page in best if best[page]), key=best.__getitem__, reverse=True)


def _scores(entries: Sequence[Entry], terms: list[str]) -> list[list[float]]:
    """Return the score of each entry for each term and field."""
    weights = [each.heading_weight for each in entries]
    fields = (
        ([each.heading for each in entries], weights),
        ([each.text for each in entries], [TEXT] * len(entries)),
    )
    return [_field(texts, weight, term) for term in terms for texts, weight in fields]


def _field(texts: list[list[str]], weights: list[float], term: str) -> list[float]:
    counts = [
        sum(count for word, count in Counter(text).items() if word.startswith(term))
        for text in texts
    ]
    matching = sum(count > 0 for count in counts)
    rarity = math.log(1 + (len(texts) - matching + 0.5) / (matching + 0.5))
    mean = max(sum(map(len, texts)) / len(texts), 1)
    return [
        weight
        * rarity
        * count
        / (count + SATURATION * (1 - LENGTH_PART + LENGTH_PART * len(text) / mean))
        for text, weight, count in zip(texts, weights, counts, strict=True)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """Build the site and return its search index."""
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    documents = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return [entry(document) for document in documents["docs"]]


def test_a_heading_counts_more_than_a_text_and_a_title_more_than_a_heading():
    entries = [
        entry({"location": "text/", "title": "Other", "text": "<p>disk full</p>"}),
        entry({"location": "none/", "title": "Other", "text": "<p>unrelated</p>"}),
        entry({"location": "title/", "title": "Disk full", "text": ""}),
        entry({"location": "heading/#disk-full", "title": "Disk full", "text": ""}),
    ]
    assert ranking(entries, "disk full") == ["title/", "heading/", "text/"]


def test_a_boost_multiplies_the_score():
    entries = [
        entry({"location": "one/", "title": "Disk", "text": ""}),
        entry({"location": "two/", "title": "Disk", "text": "", "boost": 2}),
    ]
    assert ranking(entries, "disk") == ["two/", "one/"]


@pytest.mark.parametrize(
    "query",
    ["disk full", "executor lost", "restart a taskmanager", "install", "rolling restart"],
)
def test_instructions_are_found_before_decisions(index: list[Entry], query: str):
    pages = ranking(index, query)
    kinds = [page.partition("/")[0] for page in pages]
    assert set(INSTRUCTIONS) & set(kinds)
    first = min(kinds.index(kind) for kind in INSTRUCTIONS if kind in kinds)
    assert "decisions" not in kinds[:first], pages[: first + 1]
