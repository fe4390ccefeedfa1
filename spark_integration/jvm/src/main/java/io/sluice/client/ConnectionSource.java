package io.sluice.client;

import java.io.IOException;

/** Gives a task its connections to TaskManagers, also those that take the place of a lost one. */
public interface ConnectionSource {
    /**
     * A connection to the executor's own TaskManager or, when it does not answer, to another one.
     */
    TaskManagerConnection lease() throws IOException;

    /**
     * A new connection to that TaskManager and no other; waits for its return.
     *
     * @param endpoint where it was reached before
     * @throws ClientException.ConnectFailed it is not back within {@link #returnTimeoutMillis}
     */
    TaskManagerConnection leaseAgain(Endpoint endpoint, String taskManagerId) throws IOException;

    /** How long connections may be lost and made anew without any progress in between. */
    long returnTimeoutMillis();

    /** Takes back a connection on which nothing is under way. */
    void giveBack(TaskManagerConnection connection);

    /** A TaskManager that went away is asked again: for the counters. */
    void reconnected();

    /** What came damaged is asked for once more: for the counters. */
    void refetched();
}
