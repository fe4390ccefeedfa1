package io.sluice.spark.registration;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The newest shuffles of the application, for Spark's UI. Thread safe. */
public final class ShuffleTable {
    /** Bounded, because a streaming query never stops registering shuffles. */
    public static final int MAX_SHUFFLES = 1000;

    /**
     * The choice for a shuffle.
     *
     * @param policy the policy that chose Spark's own shuffle; empty for Sluice
     */
    public record Decision(String policy, String reason) {
        static final Decision SLUICE = new Decision("", "");
    }

    /**
     * One shuffle.
     *
     * @param stageId the newest stage that writes it; -1 before the first
     * @param bytes stored bytes of the map stages that have ended
     * @param released whether Spark has released it
     */
    public record Row(
            int shuffleId,
            int maps,
            int partitions,
            Decision decision,
            int stageId,
            long records,
            long bytes,
            boolean released) {
        public static final int NO_STAGE = -1;

        Row writtenBy(int newStageId) {
            return new Row(
                    shuffleId, maps, partitions, decision, newStageId, records, bytes, released);
        }

        Row written(long moreRecords, long moreBytes) {
            return new Row(
                    shuffleId,
                    maps,
                    partitions,
                    decision,
                    stageId,
                    records + moreRecords,
                    bytes + moreBytes,
                    released);
        }

        Row asReleased() {
            return new Row(shuffleId, maps, partitions, decision, stageId, records, bytes, true);
        }
    }

    private final Map<Integer, Row> rows =
            new LinkedHashMap<>() {
                private static final long serialVersionUID = 1L;

                @Override
                protected boolean removeEldestEntry(Map.Entry<Integer, Row> eldest) {
                    return size() > MAX_SHUFFLES;
                }
            };

    private long registered;

    synchronized void add(NewShuffle shuffle, Decision decision) {
        registered++;
        rows.put(
                shuffle.shuffleId(),
                new Row(
                        shuffle.shuffleId(),
                        shuffle.maps(),
                        shuffle.partitions(),
                        decision,
                        Row.NO_STAGE,
                        0,
                        0,
                        false));
    }

    /** Records that a stage begins to write a shuffle. */
    public synchronized void writtenBy(int shuffleId, int stageId) {
        rows.computeIfPresent(shuffleId, (id, row) -> row.writtenBy(stageId));
    }

    /** Adds the amounts of a map stage that has ended. */
    public synchronized void written(int shuffleId, long records, long bytes) {
        rows.computeIfPresent(shuffleId, (id, row) -> row.written(records, bytes));
    }

    public synchronized void released(int shuffleId) {
        rows.computeIfPresent(shuffleId, (id, row) -> row.asReleased());
    }

    /** Returns a shuffle; null if it is not among the newest. */
    public synchronized Row row(int shuffleId) {
        return rows.get(shuffleId);
    }

    /** Returns the number of all shuffles registered so far. */
    public synchronized long registered() {
        return registered;
    }

    /** Returns the shuffles, the newest first. */
    public synchronized List<Row> newest() {
        List<Row> newest = new ArrayList<>(rows.values());
        Collections.reverse(newest);
        return newest;
    }
}
