package io.sluice.client.connection;

import io.sluice.client.wire.Message;

/**
 * Hears what a TaskManager tells a driver of the application's map outputs; ignores it if nothing
 * else is said.
 */
public interface OutputEvents {
    /** Called with map outputs that the TaskManager has lost. */
    default void lost(Message.OutputsLost outputs) {}

    /** Called with map outputs of which the TaskManager has copies. */
    default void held(Message.OutputsHeld outputs) {}

    /**
     * Called with map outputs that are at another TaskManager from now on. The TaskManager gives
     * them up after the return.
     */
    default void moved(Message.OutputsMoved outputs) {}
}
