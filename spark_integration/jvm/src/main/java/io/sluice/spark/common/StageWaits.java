package io.sluice.spark.common;

import java.util.Map;
import java.util.TreeMap;

/** How long the tasks of each stage waited, in nanoseconds. Thread safe. */
public final class StageWaits {
    /** The newest stages; Spark's UI keeps as many by default. */
    static final int MAX_STAGES = 1000;

    private final TreeMap<Integer, Long> waits = new TreeMap<>();

    /** Adds the wait of a task; forgets the oldest stage if there are too many. */
    public synchronized void add(int stageId, long nanos) {
        if (nanos > 0) {
            waits.merge(stageId, nanos, Long::sum);
            if (waits.size() > MAX_STAGES) {
                waits.pollFirstEntry();
            }
        }
    }

    public synchronized void addAll(Map<Integer, Long> more) {
        more.forEach(this::add);
    }

    /** Returns the sums by stage. */
    public synchronized Map<Integer, Long> sums() {
        return new TreeMap<>(waits);
    }

    /** Returns the sums by stage, and starts again at none. */
    public synchronized Map<Integer, Long> take() {
        Map<Integer, Long> taken = sums();
        waits.clear();
        return taken;
    }
}
