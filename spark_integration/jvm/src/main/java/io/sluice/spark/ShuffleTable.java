package io.sluice.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * What became of the application's shuffles, for the page in Spark's UI: the newest of them. Thread
 * safe.
 */
public final class ShuffleTable {
    /** A streaming query registers shuffles for ever. */
    static final int MAX_SHUFFLES = 1000;

    /**
     * One shuffle.
     *
     * @param policy the policy by which it is Spark's own, or empty when it goes through Sluice
     * @param reason why the policy wants it so
     * @param bytes stored bytes of its map stages that ended so far
     * @param released whether Spark has given it up
     */
    public record Row(
            int shuffleId,
            int maps,
            int partitions,
            String policy,
            String reason,
            long records,
            long bytes,
            boolean released) {

        Row written(long moreRecords, long moreBytes) {
            return new Row(
                    shuffleId,
                    maps,
                    partitions,
                    policy,
                    reason,
                    records + moreRecords,
                    bytes + moreBytes,
                    released);
        }

        Row gone() {
            return new Row(shuffleId, maps, partitions, policy, reason, records, bytes, true);
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

    synchronized void add(NewShuffle shuffle, String policy, String reason) {
        registered++;
        rows.put(
                shuffle.shuffleId(),
                new Row(
                        shuffle.shuffleId(),
                        shuffle.maps(),
                        shuffle.partitions(),
                        policy,
                        reason,
                        0,
                        0,
                        false));
    }

    /** A map stage of the shuffle has ended. */
    synchronized void written(int shuffleId, long records, long bytes) {
        rows.computeIfPresent(shuffleId, (id, row) -> row.written(records, bytes));
    }

    synchronized void released(int shuffleId) {
        rows.computeIfPresent(shuffleId, (id, row) -> row.gone());
    }

    /** How many there were in all. */
    public synchronized long registered() {
        return registered;
    }

    /** The newest first. */
    public synchronized List<Row> newest() {
        List<Row> newest = new ArrayList<>(rows.values());
        java.util.Collections.reverse(newest);
        return newest;
    }
}
