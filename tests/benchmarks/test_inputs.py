"""Inputs of the jobs: queries, tables, text, sizes, configuration of the TaskManagers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks import demo, text
from tests.support import tpch_data
from tests.support.jobs import tpch, wordcount

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", tpch.QUERIES)
def test_each_query_has_a_title_and_a_statement(number: int):
    assert tpch.query_title(number)
    assert tpch.query_text(number).startswith("-- ")
    assert "select" in tpch.query_text(number)


@pytest.mark.parametrize("number", [0, 23])
def test_tpch_has_22_queries(number: int):
    with pytest.raises(ValueError, match="1 to 22"):
        tpch.query_text(number)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tables of one scale."""
    directory = tmp_path_factory.mktemp("tables")
    tpch_data.ensure_tpch(0.001, directory)
    return directory


def test_tables_are_generated_once(tables: Path):
    data = tpch_data.ensure_tpch(0.001, tables)
    assert sorted(path.stem for path in data.iterdir()) == sorted(tpch.TABLES)
    made = (data / "lineitem.parquet").stat().st_mtime_ns
    assert tpch_data.ensure_tpch(0.001, tables) == data
    assert (data / "lineitem.parquet").stat().st_mtime_ns == made
    assert tpch_data.warm_page_cache(data) == sum(path.stat().st_size for path in data.iterdir())


def test_a_directory_that_lacks_a_table_is_made_anew(tmp_path: Path, tables: Path):
    shutil.copytree(tables, tmp_path, dirs_exist_ok=True)
    data = tpch_data.ensure_tpch(0.001, tmp_path)
    (data / "orders.parquet").unlink()
    tpch_data.ensure_tpch(0.001, tmp_path)
    assert (data / "orders.parquet").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [data.name]


def test_a_scale_the_generator_refuses_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(RuntimeError, match="tpchgen-cli failed"):
        tpch_data.ensure_tpch(-1, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_real_text_stays_within_its_limit_and_comes_in_the_same_order():
    paths, size = text.standard_library_texts(1 << 20)
    assert 900_000 < size <= 1 << 20
    assert paths == text.standard_library_texts(1 << 20)[0]


def test_words_are_runs_of_letters_in_lower_case():
    assert list(wordcount.words_of("The end, the_END of a 2nd")) == [
        "the",
        "end",
        "the",
        "end",
        "of",
        "nd",
    ]


def test_the_demo_runs_at_least_six_queries_and_the_rdd_job(tmp_path: Path):
    jobs = demo.jobs_of(demo.DEFAULT_QUERIES, tmp_path, ["a.txt"])
    assert sum(job.job == "tpch" for job in jobs) >= 6
    assert jobs[-1].job == "wordcount"
    assert len({job.name for job in jobs}) == len(jobs)
    assert demo.BASE_SETTINGS["spark.sql.autoBroadcastJoinThreshold"] == "-1"
