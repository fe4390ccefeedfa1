package io.sluice.client.connection;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.UnreachableCache;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import java.io.IOException;

/** Leases connections to tasks. */
public interface ConnectionSource {
    /** Leases a connection to the executor's own TaskManager, or to another one that answers. */
    TaskManagerConnection lease() throws IOException;

    /**
     * Leases a connection to the given TaskManager only.
     *
     * @throws ClientException.ConnectFailed if it is not back within {@link #returnTimeoutMillis}
     */
    TaskManagerConnection leaseAgain(Endpoint endpoint, String taskManagerId) throws IOException;

    /** Returns how long to wait for a lost TaskManager. */
    long returnTimeoutMillis();

    /** Returns how long to wait for a TaskManager whose host refuses connections. */
    long refusedTimeoutMillis();

    /** Takes back a clean connection. */
    void release(TaskManagerConnection connection);

    /** Avoids a TaskManager for a while, because it has no room for map outputs. */
    void avoid(Endpoint endpoint);

    /** Avoids a TaskManager for a while, because it does not answer pings. */
    default void silent(TaskManagerConnection connection) {
        unreachable().add(connection.taskManager().taskManagerId());
    }

    /** Counts a reconnect. */
    void reconnected();

    /** Counts a second request for damaged data. */
    void refetched();

    /** Returns the locator of replicas. */
    default ReplicaLocator replicas() {
        return ReplicaLocator.EMPTY;
    }

    /** Returns the unreachable TaskManagers; all gates of a process share them. */
    UnreachableCache unreachable();

    /** Returns the trace of the task; null if it is not traced. */
    default TaskTrace trace() {
        return null;
    }

    /** Counts a failover to replicas. */
    default void failedOver() {}
}
