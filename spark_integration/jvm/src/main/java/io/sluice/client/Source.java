package io.sluice.client;

/**
 * Names the data that a gate reads from one TaskManager.
 *
 * @param taskManagerId the TaskManager's own id
 * @param host its address for other hosts
 * @param port its data port
 * @param mapAttemptIds map outputs to read
 * @param streams for each of them, the number of partitions in the range that are not empty
 */
public record Source(
        String taskManagerId, String host, int port, long[] mapAttemptIds, int[] streams) {}
