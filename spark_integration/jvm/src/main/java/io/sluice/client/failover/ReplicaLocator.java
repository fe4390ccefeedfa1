package io.sluice.client.failover;

import io.sluice.client.wire.ClientException;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/** Finds other TaskManagers that have map outputs. Called only after a failure. */
@FunctionalInterface
public interface ReplicaLocator {
    /** Finds nothing. */
    ReplicaLocator EMPTY =
            (shuffleId, mapAttemptIds, avoided) ->
                    Arrays.asList(new TaskManagerAddress[mapAttemptIds.length]);

    /**
     * Returns for each map output a TaskManager that has it, or null if none is known or the
     * directory does not answer.
     *
     * @param avoided ids of the TaskManagers at which reading has failed
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     */
    List<TaskManagerAddress> locate(long shuffleId, long[] mapAttemptIds, Set<String> avoided)
            throws ClientException.Interrupted;
}
