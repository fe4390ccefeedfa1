package io.sluice.spark.outputs;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntUnaryOperator;

/**
 * The driver's directory of map outputs at other TaskManagers than those they were written to:
 * copies, and outputs that have moved. Knows neither Spark nor the network. Thread safe.
 *
 * <p>It is bounded by what Spark has registered: shuffles that are unknown have no places, and a
 * shuffle has places for a few attempts of each map task, the newest.
 */
final class Places {
    private static final int ATTEMPTS_OF_A_MAP = 4;
    private static final int LEAST_ATTEMPTS = 1024;

    /** One list for all map outputs at the same TaskManagers, of which there are few. */
    private final Map<List<String>, List<String>> shared = new HashMap<>();

    private final IntUnaryOperator mapTasks;
    private final Map<Integer, Map<Long, List<String>>> shuffles = new HashMap<>();

    /**
     * @param mapTasks returns the number of map tasks of a shuffle, negative if it is unknown
     */
    Places(IntUnaryOperator mapTasks) {
        this.mapTasks = mapTasks;
    }

    /** Adds a TaskManager that has these map outputs. */
    synchronized void add(int shuffleId, Iterable<Long> attempts, String taskManagerId) {
        int tasks = mapTasks.applyAsInt(shuffleId);
        if (tasks < 0) {
            shuffles.remove(shuffleId);
            return;
        }
        long most = Math.max(LEAST_ATTEMPTS, (long) ATTEMPTS_OF_A_MAP * tasks);
        Map<Long, List<String>> places =
                shuffles.computeIfAbsent(shuffleId, id -> new LinkedHashMap<>());
        for (long attempt : attempts) {
            List<String> before = places.getOrDefault(attempt, List.of());
            if (!before.contains(taskManagerId)) {
                List<String> all = new ArrayList<>(before);
                all.add(taskManagerId);
                places.put(attempt, shared(all));
            }
        }
        while (places.size() > most) {
            places.remove(places.keySet().iterator().next());
        }
    }

    /** Removes a TaskManager that has these map outputs no longer. */
    synchronized void remove(int shuffleId, Iterable<Long> attempts, String taskManagerId) {
        Map<Long, List<String>> places = shuffles.getOrDefault(shuffleId, new HashMap<>());
        for (long attempt : attempts) {
            places.computeIfPresent(
                    attempt,
                    (id, before) -> {
                        List<String> rest = new ArrayList<>(before);
                        rest.remove(taskManagerId);
                        return rest.isEmpty() ? null : shared(rest);
                    });
        }
        if (places.isEmpty()) {
            shuffles.remove(shuffleId);
        }
    }

    /** Removes all places of these map outputs. */
    synchronized void forget(int shuffleId, Collection<Long> attempts) {
        Map<Long, List<String>> places = shuffles.getOrDefault(shuffleId, new HashMap<>());
        attempts.forEach(places::remove);
    }

    private List<String> shared(List<String> taskManagerIds) {
        return shared.computeIfAbsent(List.copyOf(taskManagerIds), ids -> ids);
    }

    /** Returns the TaskManagers that have a map output, the first known first. */
    synchronized List<String> of(int shuffleId, long attempt) {
        return shuffles.getOrDefault(shuffleId, Map.of()).getOrDefault(attempt, List.of());
    }

    /** Forgets a shuffle that was released. */
    synchronized void released(int shuffleId) {
        shuffles.remove(shuffleId);
        if (shuffles.isEmpty()) {
            shared.clear();
        }
    }

    /** Returns the number of map outputs with places. */
    synchronized int size() {
        return shuffles.values().stream().mapToInt(Map::size).sum();
    }
}
