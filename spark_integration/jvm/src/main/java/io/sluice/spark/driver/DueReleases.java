package io.sluice.spark.driver;

import java.util.LinkedHashMap;
import java.util.Map;

/** Shuffles that a TaskManager still has to release. Thread safe. */
final class DueReleases {
    /** Maximum number of pending releases; older ones wait for the end of the application. */
    private static final int MAX = 100_000;

    private final Map<Integer, Due> byShuffle = new LinkedHashMap<>();

    /**
     * A release of the map outputs of attempts below {@code end}.
     *
     * @param late whether the shuffle may have been written again since the release was decided
     */
    record Due(long end, boolean late) {}

    /**
     * @param end exclusive upper bound of map attempts: the id of the next task
     */
    synchronized void add(int shuffleId, long end, boolean late) {
        if (byShuffle.size() >= MAX) {
            byShuffle.remove(byShuffle.keySet().iterator().next());
        }
        byShuffle.put(shuffleId, new Due(end, late));
    }

    /** Adds the pending releases of another link to the same TaskManager. */
    void addLate(DueReleases others) {
        others.all().forEach((shuffleId, due) -> add(shuffleId, due.end(), true));
    }

    synchronized void allAreLate() {
        byShuffle.replaceAll((id, due) -> new Due(due.end(), true));
    }

    synchronized Map<Integer, Due> all() {
        return new LinkedHashMap<>(byShuffle);
    }

    /** Removes a release that is done, unless it was decided again. */
    synchronized void done(int shuffleId, Due due) {
        byShuffle.remove(shuffleId, due);
    }

    synchronized boolean isEmpty() {
        return byShuffle.isEmpty();
    }
}
