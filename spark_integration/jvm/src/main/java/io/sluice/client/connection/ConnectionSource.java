package io.sluice.client.connection;

import io.sluice.client.failover.Absences;
import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import java.io.IOException;

/** Gives a task its connections to TaskManagers, including those that replace a lost one. */
public interface ConnectionSource {
    /**
     * Leases a connection to the executor's own TaskManager, or to another one if that does not
     * answer.
     */
    TaskManagerConnection lease() throws IOException;

    /**
     * Leases a new connection to the given TaskManager and no other; waits for its return.
     *
     * @param endpoint where the TaskManager was reached before
     * @throws ClientException.ConnectFailed if it is not back within {@link #returnTimeoutMillis}
     */
    TaskManagerConnection leaseAgain(Endpoint endpoint, String taskManagerId) throws IOException;

    /**
     * Returns for how long connections may be lost and replaced without any progress in between.
     */
    long returnTimeoutMillis();

    /** Takes back a connection on which nothing is under way. */
    void giveBack(TaskManagerConnection connection);

    /** Passes over a TaskManager for a while, because it has no room for map outputs. */
    void passOver(Endpoint endpoint);

    /** Counts a TaskManager that went away and is asked again. */
    void reconnected();

    /** Counts damaged data that is requested a second time. */
    void refetched();

    /** Returns the directory of other places of map outputs, for a source that fails. */
    default PlaceDirectory places() {
        return PlaceDirectory.EMPTY;
    }

    /**
     * Returns the TaskManagers that were out of reach lately; all gates of a process share them.
     */
    Absences absences();

    /** Counts a source that failed and is read at another TaskManager. */
    default void failedOver() {}
}
