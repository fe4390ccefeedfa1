"""The mutations still fit the code; ``make simulate-mutants`` runs them."""

from __future__ import annotations

import pytest

from tests.simulation import mutants
from tests.simulation.mutations import (
    DRAIN,
    MEMBERSHIP,
    MUTATIONS,
    REMOTE,
    REPLICAS,
    STORE,
    Mutation,
)
from tests.simulation.plan import BUCKET_KINDS, KINDS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_applies_once(mutation: Mutation) -> None:
    assert mutants.changed(mutation)
    assert set(mutation.faults) <= {*KINDS, *BUCKET_KINDS}


def test_a_mutation_whose_text_is_gone_fails() -> None:
    with pytest.raises(mutants.DoesNotApply, match="a test: its text is there 0 times"):
        mutants.mutated(MUTATIONS[0]._replace(what="a test", old="no such text"))


def test_a_mutation_outside_functions_fails() -> None:
    docstring = MUTATIONS[0]._replace(
        what="a test", path="shuffle/taskmanager/replicas/migration.py", old="CHUNK: Final = 256\n"
    )
    with pytest.raises(mutants.DoesNotApply, match="a test: it changes no function"):
        mutants.changed(docstring._replace(new="CHUNK: Final = 255\n"))


def test_mutations_are_distinct_and_of_all_areas() -> None:
    assert len({each.what for each in MUTATIONS}) == len(MUTATIONS)
    assert {each.area for each in MUTATIONS} == {REMOTE, STORE, REPLICAS, DRAIN, MEMBERSHIP}
