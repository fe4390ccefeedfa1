package io.sluice.spark.outputs;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntUnaryOperator;

/**
 * Records which TaskManagers have replicas of map outputs: copies, and outputs that have moved.
 * Thread safe. Bounded: only shuffles that Spark knows, and the newest attempts of each map task.
 */
final class ReplicaTable {
    private static final int ATTEMPTS_OF_A_MAP = 4;
    private static final int MIN_ATTEMPTS = 1024;

    /** One list for all map outputs at the same TaskManagers. */
    private final Map<List<String>, List<String>> shared = new HashMap<>();

    private final IntUnaryOperator mapTasks;
    private final Map<Integer, Map<Long, List<String>>> shuffles = new HashMap<>();

    /**
     * @param mapTasks returns the number of map tasks of a shuffle; negative if unknown
     */
    ReplicaTable(IntUnaryOperator mapTasks) {
        this.mapTasks = mapTasks;
    }

    /** Records that a TaskManager has these map outputs. */
    synchronized void add(int shuffleId, Iterable<Long> attempts, String taskManagerId) {
        int tasks = mapTasks.applyAsInt(shuffleId);
        if (tasks < 0) {
            shuffles.remove(shuffleId);
            return;
        }
        long limit = Math.max(MIN_ATTEMPTS, (long) ATTEMPTS_OF_A_MAP * tasks);
        Map<Long, List<String>> replicas =
                shuffles.computeIfAbsent(shuffleId, id -> new LinkedHashMap<>());
        for (long attempt : attempts) {
            List<String> before = replicas.getOrDefault(attempt, List.of());
            if (!before.contains(taskManagerId)) {
                List<String> all = new ArrayList<>(before);
                all.add(taskManagerId);
                replicas.put(attempt, shared(all));
            }
        }
        while (replicas.size() > limit) {
            replicas.remove(replicas.keySet().iterator().next());
        }
    }

    /** Records that a TaskManager no longer has these map outputs. */
    synchronized void remove(int shuffleId, Iterable<Long> attempts, String taskManagerId) {
        Map<Long, List<String>> replicas = shuffles.getOrDefault(shuffleId, new HashMap<>());
        for (long attempt : attempts) {
            replicas.computeIfPresent(
                    attempt,
                    (id, before) -> {
                        List<String> rest = new ArrayList<>(before);
                        rest.remove(taskManagerId);
                        return rest.isEmpty() ? null : shared(rest);
                    });
        }
        if (replicas.isEmpty()) {
            shuffles.remove(shuffleId);
        }
    }

    /** Removes all replicas of these map outputs. */
    synchronized void forget(int shuffleId, Collection<Long> attempts) {
        Map<Long, List<String>> replicas = shuffles.getOrDefault(shuffleId, new HashMap<>());
        attempts.forEach(replicas::remove);
    }

    private List<String> shared(List<String> taskManagerIds) {
        return shared.computeIfAbsent(List.copyOf(taskManagerIds), ids -> ids);
    }

    /** Returns the TaskManagers that have a map output, oldest first. */
    synchronized List<String> of(int shuffleId, long attempt) {
        return shuffles.getOrDefault(shuffleId, Map.of()).getOrDefault(attempt, List.of());
    }

    /** Removes a released shuffle. */
    synchronized void released(int shuffleId) {
        shuffles.remove(shuffleId);
        if (shuffles.isEmpty()) {
            shared.clear();
        }
    }

    /** Returns the number of map outputs with replicas. */
    synchronized int size() {
        return shuffles.values().stream().mapToInt(Map::size).sum();
    }
}
