package io.sluice.client.output;

/**
 * How many TaskManagers keep a map output.
 *
 * @param count number of TaskManagers, 1 to {@link #MAX}
 * @param isSynchronous whether a commit waits for the copies
 */
public record Replicas(int count, boolean isSynchronous) {
    public static final int MAX = 8;

    /** No copies. */
    public static final Replicas ONE = new Replicas(1, false);
}
