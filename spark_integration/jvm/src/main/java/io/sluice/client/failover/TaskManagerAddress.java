package io.sluice.client.failover;

import io.sluice.client.wire.Endpoint;

/**
 * A TaskManager and its address.
 *
 * @param taskManagerId the TaskManager's own id
 * @param host its address for other hosts
 * @param port its data port
 */
public record TaskManagerAddress(String taskManagerId, String host, int port) {
    /** Parses {@code ID HOST:PORT}, the value of PARTITION_MOVED; null if the text is invalid. */
    public static TaskManagerAddress parse(String text) {
        int space = text.indexOf(' ');
        if (space <= 0) {
            return null;
        }
        try {
            Endpoint endpoint = Endpoint.parse(text.substring(space + 1), "");
            return endpoint.isUnix()
                    ? null
                    : new TaskManagerAddress(
                            text.substring(0, space), endpoint.host(), endpoint.port());
        } catch (IllegalArgumentException e) {
            return null;
        }
    }
}
