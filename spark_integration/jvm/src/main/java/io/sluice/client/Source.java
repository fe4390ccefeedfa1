package io.sluice.client;

/**
 * What a gate reads from one TaskManager.
 *
 * @param taskManagerId the TaskManager's own id
 * @param host its address for other hosts
 * @param port its data port
 * @param mapAttemptIds the wanted map outputs
 * @param streams for each of them, how many partitions of the range are not empty
 */
public record Source(
        String taskManagerId, String host, int port, long[] mapAttemptIds, int[] streams) {}
