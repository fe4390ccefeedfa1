package io.sluice.client.gate;

import java.util.stream.IntStream;

/**
 * Names the data that a gate reads from one TaskManager.
 *
 * @param taskManagerId the TaskManager's own id
 * @param host its address for other hosts
 * @param port its data port
 * @param mapAttemptIds map outputs to read, in the order in which the TaskManager sends them
 * @param streams for each of them, the number of partitions in the range that are not empty
 * @param mapIndexes for each of them, its place among the map outputs of the shuffle, ascending
 */
public record Source(
        String taskManagerId,
        String host,
        int port,
        long[] mapAttemptIds,
        int[] streams,
        int[] mapIndexes) {
    /** Names data that has no place among those of other sources. */
    public Source(
            String taskManagerId, String host, int port, long[] mapAttemptIds, int[] streams) {
        this(
                taskManagerId,
                host,
                port,
                mapAttemptIds,
                streams,
                IntStream.range(0, mapAttemptIds.length).toArray());
    }
}
