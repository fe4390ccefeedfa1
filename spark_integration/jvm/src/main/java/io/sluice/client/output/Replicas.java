package io.sluice.client.output;

/**
 * How many TaskManagers keep a map output.
 *
 * @param count number of TaskManagers, 1 to {@link #MAX}
 * @param isSynchronous whether a commit waits for the copies
 * @param isRemote whether there is a copy in the remote tier, too
 */
public record Replicas(int count, boolean isSynchronous, boolean isRemote) {
    public static final int MAX = 8;

    /** No copies. */
    public static final Replicas ONE = new Replicas(1, false);

    /** Without a copy in the remote tier. */
    public Replicas(int count, boolean isSynchronous) {
        this(count, isSynchronous, false);
    }
}
