"""Holdings in single steps, and in a model of a cluster whose TaskManagers come and go."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.cluster.placement import rendezvous_order
from sluice.shuffle.taskmanager.replicas.holdings import Holdings

KEY = ShuffleKey("app", 1)
ATTEMPT = MapAttemptKey(KEY, 7)


def test_an_origin_makes_missing_copies():
    holdings = Holdings()
    holding = holdings.add(ATTEMPT, "", 3)
    assert (holding.missing, holding.settled) == (2, False)
    holdings.has(ATTEMPT, "b")
    assert (holding.missing, holdings.short) == (1, {ATTEMPT})
    holdings.has(ATTEMPT, "c")
    assert (holding.missing, holdings.short, holding.settled) == (0, set(), True)
    assert holdings.holders() == {("app", "b"), ("app", "c")}
    assert holdings.lost("app", "b") == [ATTEMPT]
    assert holding.missing == 1
    assert holding.settled  # what is copied now is restored
    assert holdings.lost("app", "nobody") == []


def test_a_holder_makes_copies_when_the_origin_is_lost():
    holdings = Holdings()
    holding = holdings.add(ATTEMPT, "origin", 3)
    assert (holding.missing, holdings.holders()) == (0, {("app", "origin")})
    assert holdings.lost("app", "origin") == [ATTEMPT]
    assert holding.missing == 2


def test_a_loss_affects_the_applications_that_noticed_it():
    holdings = Holdings()
    other = MapAttemptKey(ShuffleKey("other", 1), 7)
    for attempt in (ATTEMPT, other):
        holdings.add(attempt, "", 2)
        holdings.has(attempt, "b")
    holdings.doubt("other", "b")
    assert holdings.doubted("app", "b") == []
    assert holdings.lost("other", "b") == [other]
    assert holdings.short == {other}
    assert holdings.holders() == {("app", "b")}


def test_a_moved_map_output_is_not_shared():
    holdings = Holdings()
    holdings.add(ATTEMPT, "origin", 1)
    assert holdings.holders() == set()
    assert holdings.short == set()
    assert [*holdings.attempts()] == [ATTEMPT]
    assert holdings.has_application("app")
    assert not holdings.has_application("other")


def test_a_taskmanager_that_was_away_is_asked():
    holdings = Holdings()
    holding = holdings.add(ATTEMPT, "", 2)
    holdings.has(ATTEMPT, "b")
    assert holdings.doubted("app", "b") == []
    holdings.doubt("app", "b")
    assert holdings.doubted("app", "b") == [ATTEMPT]
    assert holding.missing == 0  # until it is known to be without
    holdings.has(ATTEMPT, "b")
    assert holdings.doubted("app", "b") == []
    holdings.doubt("app", "b")
    holdings.has_not(ATTEMPT, "b")
    assert (holding.missing, holding.doubtful) == (1, set())


def test_released_map_outputs_are_forgotten():
    holdings = Holdings()
    for number in range(3):
        holdings.add(MapAttemptKey(ShuffleKey("app", number), 0), "", 2)
        holdings.has(MapAttemptKey(ShuffleKey("app", number), 0), "b")
    holdings.discard(ShuffleKey("app", 0), [0, 5])
    assert len(holdings) == 2
    holdings.release(ShuffleKey("app", 1))
    assert holdings.holders() == {("app", "b")}
    holdings.release(ShuffleKey("app", 2), 0)
    assert holdings.holders() == {("app", "b")}
    holdings.release_application("app")
    assert (len(holdings), holdings.holders(), holdings.short) == (0, set(), set())
    holdings.has(ATTEMPT, "b")
    holdings.has_not(ATTEMPT, "b")
    assert holdings.get(ATTEMPT) is None


class TaskManager:
    """The map outputs of a TaskManager, and its holdings."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: dict[MapAttemptKey, str] = {}
        """The origins of its map outputs; empty: their producers wrote here."""
        self.holdings = Holdings()

    def commit(self, attempt: MapAttemptKey, origin: str, replicas: int) -> None:
        self.stored[attempt] = origin
        self.holdings.add(attempt, origin, replicas)


class Cluster(RuleBasedStateMachine):
    """TaskManagers that copy as ``Replication`` does, of which at most one is away at a time."""

    REPLICAS = 2

    @initialize(count=st.integers(3, 5))
    def start(self, count: int) -> None:
        self.all = {f"tm{number}": TaskManager(f"tm{number}") for number in range(count)}
        self.away: str | None = None
        self.attempts: list[MapAttemptKey] = []

    def present(self) -> dict[str, TaskManager]:
        return {name: each for name, each in self.all.items() if name != self.away}

    def make_copies(self, taskmanager: TaskManager) -> None:
        """Make the copies that a TaskManager has to make."""
        present = self.present()
        for attempt in list(taskmanager.holdings.short):
            holding = taskmanager.holdings.get(attempt)
            assert holding is not None
            for name in rendezvous_order(attempt, present.keys() - {taskmanager.name}):
                if holding.missing and name not in holding.others:
                    other = present[name]
                    if attempt not in other.stored:
                        other.commit(attempt, taskmanager.name, self.REPLICAS)
                    taskmanager.holdings.has(attempt, name)

    def ask(self, taskmanager: TaskManager, name: str) -> None:
        """Ask a TaskManager that was away what it still has, and copy the rest."""
        for attempt in taskmanager.holdings.doubted("app", name):
            if attempt not in self.all[name].stored:
                self.all[name].commit(attempt, taskmanager.name, self.REPLICAS)
            taskmanager.holdings.has(attempt, name)

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        origin = self.present()[data.draw(st.sampled_from(sorted(self.present())))]
        attempt = MapAttemptKey(KEY, len(self.attempts))
        self.attempts.append(attempt)
        origin.commit(attempt, "", self.REPLICAS)
        self.make_copies(origin)

    @precondition(lambda self: self.away is None)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        self.away = data.draw(st.sampled_from(sorted(self.all)))

    @precondition(lambda self: self.away is not None)
    @rule()
    def is_lost(self) -> None:
        assert self.away is not None
        for each in self.present().values():
            each.holdings.lost("app", self.away)
        for each in self.present().values():
            self.make_copies(each)

    @precondition(lambda self: self.away is not None)
    @rule(with_its_data=st.booleans())
    def comes_back(self, with_its_data: bool) -> None:
        """Start the TaskManager again; without its data only after the others copied it."""
        name = self.away
        assert name is not None
        if not with_its_data:
            self.is_lost()
        back = TaskManager(name)
        if with_its_data:
            for attempt, origin in self.all[name].stored.items():
                back.commit(attempt, origin, self.REPLICAS)
        self.all[name] = back
        self.away = None
        for each in self.present().values():
            each.holdings.doubt("app", name)
            self.ask(each, name)
        for _, other in sorted(back.holdings.holders()):
            back.holdings.doubt("app", other)
            self.ask(back, other)
        self.make_copies(back)

    @invariant()
    def each_counts_its_map_outputs(self) -> None:
        for each in getattr(self, "all", {}).values():
            assert len(each.holdings) == len([*each.holdings.attempts()])

    @invariant()
    def no_map_output_is_without_a_holder(self) -> None:
        for attempt in getattr(self, "attempts", ()):
            having = [name for name, each in self.present().items() if attempt in each.stored]
            assert having, attempt
            if self.away is None:
                assert len(having) >= self.REPLICAS, attempt


Cluster.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestCluster = Cluster.TestCase
