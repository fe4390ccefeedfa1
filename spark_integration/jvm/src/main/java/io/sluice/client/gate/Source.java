package io.sluice.client.gate;

import io.sluice.client.failover.TaskManagerAddress;
import java.util.stream.IntStream;

/**
 * The data that a gate reads from one TaskManager.
 *
 * @param host its address for other hosts
 * @param port its data port
 * @param mapAttemptIds map outputs, in the order in which the TaskManager sends them
 * @param streams for each map output, the number of its non-empty partitions in the range
 * @param mapIndexes for each map output, the index of its map task, ascending
 */
public record Source(
        String taskManagerId,
        String host,
        int port,
        long[] mapAttemptIds,
        int[] streams,
        int[] mapIndexes) {
    /** Returns the id and the address of the TaskManager. */
    TaskManagerAddress address() {
        return new TaskManagerAddress(taskManagerId, host, port);
    }

    /** Makes a source without map indexes. */
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
