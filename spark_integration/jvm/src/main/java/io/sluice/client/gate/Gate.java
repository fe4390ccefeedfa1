package io.sluice.client.gate;

import io.sluice.client.wire.ClientException;
import java.io.IOException;

/**
 * Delivers what one task reads, and counts it. One thread reads; another thread may call {@link
 * #close}, which ends the reader's wait.
 *
 * @param <T> the unit that is read at a time
 */
public interface Gate<T> extends AutoCloseable {
    /**
     * Waits for the next unit and returns it.
     *
     * @return null at the end, when the gate has closed itself
     * @throws SourceFailure if a source failed
     * @throws ClientException if no TaskManager can be read through
     */
    T next() throws IOException;

    /** Returns the nanoseconds this gate has waited so far. */
    long waitedNanos();

    /** Returns the bytes received so far from the own TaskManager, block headers included. */
    long localBytes();

    /** Returns the bytes received so far from other TaskManagers, block headers included. */
    long remoteBytes();

    /** Returns whether the calling thread reads the gate. */
    boolean isReadByCaller();

    /**
     * Closes the gate; idempotent. Its connections return to the pool if all data has arrived or
     * the TaskManager confirms the close.
     */
    @Override
    void close();
}
