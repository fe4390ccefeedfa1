package io.sluice.spark.outputs;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

class OutputRegistryTest {
    private static final int SHUFFLE = 3;
    private static final String A = "tm-a";
    private static final String B = "tm-b";
    private static final String C = "tm-c";

    /** Stands for Spark's tracker: one shuffle of ten map tasks. */
    private static final class FakeTracker implements Tracker {
        final Map<Long, String> places = new TreeMap<>();
        final Map<Long, String> hosts = new TreeMap<>();
        int changes;
        int passes;

        @Override
        public int mapTasks(int shuffleId) {
            return shuffleId == SHUFFLE ? 10 : -1;
        }

        @Override
        public Optional<String> taskManagerOf(int shuffleId, long attempt) {
            return Optional.ofNullable(shuffleId == SHUFFLE ? places.get(attempt) : null);
        }

        @Override
        public Map<String, Map<Integer, List<Long>>> outputsOf(Set<String> taskManagerIds) {
            Map<String, Map<Integer, List<Long>>> found = new TreeMap<>();
            passes++;
            places.forEach(
                    (attempt, at) -> {
                        if (taskManagerIds.contains(at)) {
                            found.computeIfAbsent(at, id -> new TreeMap<>())
                                    .computeIfAbsent(SHUFFLE, id -> new ArrayList<>())
                                    .add(attempt);
                        }
                    });
            return found;
        }

        @Override
        public void update(int shuffleId, long attempt, TaskManagerAddress place) {
            places.put(attempt, place.taskManagerId());
            hosts.put(attempt, place.host());
        }

        @Override
        public int unregister(int shuffleId, Collection<Long> attempts) {
            int before = places.size();
            places.keySet().removeAll(attempts);
            return before - places.size();
        }

        @Override
        public void changed() {
            changes++;
        }
    }

    private static final class FakeLinks implements OutputRegistry.Links {
        final Set<String> connected = new HashSet<>(Set.of(A, B));
        final Set<String> known = new HashSet<>(Set.of(A, B));
        final Set<String> away = new HashSet<>();
        final Set<String> withRemoteTier = new HashSet<>();
        final List<TaskManagerAddress> added = new ArrayList<>();

        @Override
        public TaskManagerAddress connected(String taskManagerId) {
            return connected.contains(taskManagerId) ? at(taskManagerId) : null;
        }

        @Override
        public TaskManagerAddress withRemoteTier(Set<String> avoided) {
            return withRemoteTier.stream()
                    .filter(id -> connected.contains(id) && !avoided.contains(id))
                    .sorted()
                    .findFirst()
                    .map(OutputRegistryTest::at)
                    .orElse(null);
        }

        @Override
        public boolean isKnown(String taskManagerId) {
            return known.contains(taskManagerId);
        }

        @Override
        public boolean isAway(String taskManagerId) {
            return away.contains(taskManagerId);
        }

        @Override
        public void add(TaskManagerAddress place) {
            added.add(place);
        }
    }

    private final FakeTracker tracker = new FakeTracker();
    private final FakeLinks links = new FakeLinks();
    private final OutputRegistry registry = new OutputRegistry(tracker, links);

    private static TaskManagerAddress at(String taskManagerId) {
        return new TaskManagerAddress(taskManagerId, "host-of-" + taskManagerId, 7337);
    }

    private void written(String taskManagerId, long... attempts) {
        for (long attempt : attempts) {
            tracker.places.put(attempt, taskManagerId);
        }
    }

    private void held(String taskManagerId, Long... attempts) {
        registry.held(taskManagerId, new Message.OutputsHeld(SHUFFLE, List.of(attempts)));
    }

    private void moved(String from, String to, Long... attempts) {
        TaskManagerAddress place = at(to);
        registry.moved(
                from,
                new Message.OutputsMoved(
                        1, SHUFFLE, to, place.host(), place.port(), List.of(attempts)));
    }

    private void remote(Long... attempts) {
        registry.remote(new Message.OutputsRemote(SHUFFLE, List.of(attempts)));
    }

    private static Message.HelloAck ackOf(String taskManagerId) {
        return ackOf(taskManagerId, "host");
    }

    private static Message.HelloAck ackOf(String taskManagerId, String host) {
        return new Message.HelloAck(1, taskManagerId, 1, 0, 0, host, 1, "instance", 0, 1);
    }

    @Test
    void outputsFollowTheirTaskManagerToAnotherAddress() {
        written(A, 1, 2);
        written(B, 3);
        registry.connected(ackOf(A, "old"));
        registry.connected(ackOf(A, "old"));
        assertEquals(0, tracker.changes, "the address is the same");
        registry.connected(ackOf(A, "new"));
        assertEquals(Map.of(1L, "new", 2L, "new"), tracker.hosts);
        assertEquals(1, tracker.changes);
    }

    @Test
    void aFailedTaskManagerIsNamedAtItsNewAddress() {
        written(A, 1);
        TaskManagerAddress old = new TaskManagerAddress(A, "old", 7337);
        assertEquals(
                List.of(at(A)),
                registry.replicas(SHUFFLE, List.of(1L), Set.of(A), old).replicas().addresses());
        assertNull(
                registry.replicas(SHUFFLE, List.of(1L), Set.of(A), at(A))
                        .replicas()
                        .addresses()
                        .get(0),
                "it has failed there, too");
    }

    private List<TaskManagerAddress> places(Set<String> avoided, Long... attempts) {
        return registry.replicas(SHUFFLE, List.of(attempts), avoided, null).replicas().addresses();
    }

    @Test
    void aCopyIsNamedWhenItsOriginIsAvoided() {
        written(A, 1, 2);
        held(B, 1L);
        List<TaskManagerAddress> found = places(Set.of(A), 1L, 2L);
        assertEquals(at(B), found.get(0));
        assertNull(found.get(1));
        assertNull(places(Set.of(A, B), 1L).get(0));
        assertEquals(A, tracker.places.get(1L), "the origin is there");
    }

    @Test
    void aTaskManagerWithoutConnectionIsNotNamed() {
        written(A, 1);
        held(B, 1L);
        links.connected.remove(B);
        assertNull(places(Set.of(A), 1L).get(0));
    }

    @Test
    void theTrackersPlaceIsNamedToo() {
        written(B, 1);
        DriverMessages.ReplicasAnswer answer =
                registry.replicas(SHUFFLE, List.of(1L), Set.of(A), null);
        assertEquals(List.of(at(B)), answer.replicas().addresses());
        assertTrue(answer.isOutdated(), "the executor does not know it");
        assertFalse(registry.replicas(SHUFFLE, List.of(1L), Set.of(B), null).isOutdated());
    }

    @Test
    void theAnswerNamesTheAvoidedTaskManagersThatAreAway() {
        written(A, 1);
        links.away.add(B);
        assertEquals(
                Set.of(),
                registry.replicas(SHUFFLE, List.of(1L), Set.of(A), null).replicas().gone());
        links.away.add(A);
        assertEquals(
                Set.of(A),
                registry.replicas(SHUFFLE, List.of(1L), Set.of(A), null).replicas().gone());
    }

    @Test
    void movedOutputsAreMovedInTheTracker() {
        written(A, 1, 2, 3);
        moved(A, B, 1L, 2L);
        assertEquals(Map.of(1L, B, 2L, B, 3L, A), tracker.places);
        assertEquals(1, tracker.changes);
        assertEquals(List.of(), links.added);
        assertEquals(at(B), places(Set.of(A), 1L).get(0));
    }

    @Test
    void aPlaceThatIsNotKnownYetGetsAConnectionAndIsNamedAtOnce() {
        written(A, 1);
        moved(A, C, 1L);
        assertEquals(List.of(at(C)), links.added);
        assertEquals(at(C), places(Set.of(A), 1L).get(0));
        links.known.add(C);
        assertNull(places(Set.of(A), 1L).get(0), "it was there and is away");
    }

    @Test
    void aMoveBeforeItsTaskHasReportedIsNotLost() {
        moved(A, B, 1L);
        assertEquals(at(B), places(Set.of(A), 1L).get(0));
        written(A, 1);
        assertEquals(at(B), places(Set.of(A), 1L).get(0), "readers are sent there");
        registry.written(SHUFFLE);
        assertEquals(B, tracker.places.get(1L));
        assertEquals(1, tracker.changes);
        registry.written(SHUFFLE);
        assertEquals(1, tracker.changes);
    }

    @Test
    void aMoveThatIsToldAgainDoesNotUndoTheNext() {
        links.connected.add(C);
        written(A, 1);
        moved(A, B, 1L);
        moved(B, C, 1L);
        moved(A, B, 1L);
        assertEquals(C, tracker.places.get(1L));
    }

    @Test
    void aLostOutputIsReadAtItsCopyOrMadeAgain() {
        written(A, 1, 2);
        written(B, 3);
        held(B, 1L);
        registry.lost(A, new Message.OutputsLost(SHUFFLE, List.of(1L, 2L, 3L)));
        assertEquals(Map.of(1L, B, 3L, B), tracker.places);
    }

    @Test
    void aLostCopyIsNotNamedAnyMore() {
        written(A, 1);
        held(B, 1L);
        registry.lost(B, new Message.OutputsLost(SHUFFLE, List.of(1L)));
        assertEquals(Map.of(1L, A), tracker.places, "the origin has it");
        assertNull(places(Set.of(A), 1L).get(0));
        assertEquals(0, registry.size());
    }

    @Test
    void allThatIsElsewhereIsReadThereWhenATaskManagerIsGone() {
        written(A, 1, 2);
        held(B, 1L);
        links.connected.remove(A);
        registry.gone(A);
        assertEquals(Map.of(1L, B, 2L, A), tracker.places);
        held(B, 2L);
        assertEquals(Map.of(1L, B, 2L, B), tracker.places, "this copy is newer");
    }

    @Test
    void anOutputThatIsReportedAfterItsTaskManagerHasGoneIsReadElsewhere() {
        held(B, 1L);
        links.connected.remove(A);
        registry.gone(A);
        written(A, 1);
        registry.written(SHUFFLE);
        assertEquals(B, tracker.places.get(1L));
    }

    @Test
    void aTaskManagerThatComesBackIsAPlaceAgain() {
        written(A, 1);
        held(B, 1L);
        links.connected.remove(A);
        registry.gone(A);
        links.connected.add(A);
        registry.connected(
                new Message.HelloAck(1, A, 32768, 0, 0, "host-of-" + A, 7337, "i", 0, 1));
        assertEquals(at(A), places(Set.of(B), 1L).get(0));
        assertEquals(B, tracker.places.get(1L));
        held(B, 2L);
        written(A, 2);
        registry.written(SHUFFLE);
        assertEquals(A, tracker.places.get(2L), "nothing moves away from it now");
    }

    @Test
    void aTaskThatFailsLeavesNothingBehindThatIsElsewhere() {
        written(A, 1, 2, 3);
        held(B, 1L, 3L);
        registry.onUnreadable(A, SHUFFLE, List.of(3L));
        assertEquals(Map.of(1L, B, 2L, A, 3L, A), tracker.places, "3 was read in vain at B");
        assertNull(places(Set.of(A), 3L).get(0));
    }

    @Test
    void aReleasedShuffleHasNoPlaces() {
        written(A, 1);
        held(B, 1L);
        moved(A, B, 2L);
        registry.released(SHUFFLE);
        assertEquals(0, registry.size());
        written(A, 2);
        registry.written(SHUFFLE);
        assertEquals(A, tracker.places.get(2L));
    }

    @Test
    void theDirectoryIsBoundedByWhatSparkKnows() {
        Map<Integer, Integer> tasks = new HashMap<>(Map.of(1, 500));
        ReplicaTable places = new ReplicaTable(shuffleId -> tasks.getOrDefault(shuffleId, -1));
        places.add(2, List.of(1L), A);
        assertEquals(0, places.size());
        for (long attempt = 0; attempt < 5000; attempt++) {
            places.add(1, List.of(attempt), A);
        }
        assertEquals(2000, places.size());
        assertEquals(List.of(), places.of(1, 2999));
        assertEquals(List.of(A), places.of(1, 3000));
        tasks.clear();
        places.add(1, List.of(1L), A);
        assertEquals(0, places.size());
    }

    @Test
    void questionAndAnswerSurviveTheirTexts() {
        String[] question =
                DriverMessages.replicas(SHUFFLE, new long[] {5, 1L << 40}, List.of(A, B), at(B));
        assertEquals(
                new DriverMessages.ReplicasQuestion(
                        SHUFFLE, List.of(5L, 1L << 40), Set.of(A, B), at(B)),
                DriverMessages.ReplicasQuestion.read(question));
        assertEquals(
                new DriverMessages.Unreadable(A, SHUFFLE, List.of(5L, 6L)),
                DriverMessages.Unreadable.read(
                        DriverMessages.unreadable(A, SHUFFLE, new long[] {5, 6})));
        List<TaskManagerAddress> found = new ArrayList<>();
        found.add(at(A));
        found.add(null);
        for (Set<String> gone : List.of(Set.<String>of(), Set.of(B), Set.of(A, B))) {
            DriverMessages.ReplicasAnswer answer =
                    new DriverMessages.ReplicasAnswer(
                            true, new ReplicaLocator.Replicas(found, gone));
            assertEquals(answer, DriverMessages.ReplicasAnswer.read(answer.message()));
        }
    }

    @Test
    void outputsOfAReplacedTaskManagerRunAgainUnlessTheyHaveCopies() {
        written(A, 1, 2, 3);
        written(B, 4);
        held(B, 2L);
        links.connected.remove(A);
        links.known.remove(A);
        registry.replaced(A);
        assertEquals(Map.of(2L, B, 4L, B), tracker.places);
        // Its task ended before the loss, and Spark hears of it only now.
        written(A, 5);
        registry.unregisterLost(Set.of());
        assertEquals(Map.of(2L, B, 4L, B), tracker.places);
    }

    @Test
    void manyLostTaskManagersCostOnePassOverTheTracker() {
        for (long attempt = 1; attempt < 6; attempt++) {
            written("lost-" + attempt, attempt);
        }
        remote(1L, 2L, 3L, 4L, 5L);
        for (int number = 1; number < 6; number++) {
            registry.gone("lost-" + number);
        }
        links.withRemoteTier.add(B);
        tracker.passes = 0;
        registry.connected(ackOf(B));
        assertEquals(1, tracker.passes);
        assertEquals(Set.of(B), Set.copyOf(tracker.places.values()));
        for (long attempt = 1; attempt < 6; attempt++) {
            written("lost-" + attempt, attempt);
        }
        tracker.passes = 0;
        registry.written(SHUFFLE);
        assertEquals(1, tracker.passes);
        assertEquals(Set.of(B), Set.copyOf(tracker.places.values()));
    }

    @Test
    void severalTaskManagersThatDoNotReturnAreForgottenTogether() {
        written(A, 1, 2);
        written(B, 3);
        written(C, 4);
        links.connected.clear();
        registry.unregisterLost(Set.of(A, B));
        assertEquals(Map.of(4L, C), tracker.places);
        assertEquals(1, tracker.passes, "over all map outputs");
    }

    @Test
    void anyTaskManagerWithTheRemoteTierServesItsCopies() {
        written(A, 1, 2);
        remote(1L);
        assertNull(places(Set.of(A), 1L).get(0), "B has no remote tier");
        links.withRemoteTier.addAll(Set.of(A, B));
        assertEquals(at(B), places(Set.of(A), 1L).get(0));
        assertNull(places(Set.of(A), 2L).get(0));
        assertNull(places(Set.of(A, B), 1L).get(0));
        registry.gone(A);
        assertEquals(B, tracker.places.get(1L));
        assertEquals(A, tracker.places.get(2L));
    }

    @Test
    void copiesInTheRemoteTierWaitForTheNextTaskManager() {
        written(A, 1, 2);
        remote(1L);
        links.connected.clear();
        registry.replaced(A);
        assertEquals(A, tracker.places.get(1L), "no map task runs again");
        assertNull(tracker.places.get(2L));
        links.connected.add(C);
        links.known.add(C);
        links.withRemoteTier.add(C);
        registry.connected(ackOf(C));
        assertEquals(C, tracker.places.get(1L));
    }

    @Test
    void aTaskManagerServesTheCopiesOfItsLostOutputs() {
        written(A, 1, 2);
        remote(1L);
        links.connected.remove(B);
        links.withRemoteTier.add(A);
        registry.lost(A, new Message.OutputsLost(SHUFFLE, List.of(1L, 2L)));
        assertEquals(A, tracker.places.get(1L));
        assertNull(tracker.places.get(2L));
    }
}
