package io.sluice.client.failover;

import io.sluice.client.wire.ClientException;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/** Finds other TaskManagers that have map outputs. Called only after a failure. */
@FunctionalInterface
public interface ReplicaLocator {
    /**
     * What the directory knows.
     *
     * @param addresses for each map output a TaskManager that has it, or null
     * @param gone those of the avoided TaskManagers that the directory has lost, too
     */
    record Replicas(List<TaskManagerAddress> addresses, Set<String> gone) {
        /** Returns the answer of a directory that knows nothing. */
        public static Replicas none(int mapOutputs) {
            return new Replicas(Arrays.asList(new TaskManagerAddress[mapOutputs]), Set.of());
        }
    }

    /** Finds nothing. */
    ReplicaLocator EMPTY =
            (shuffleId, mapAttemptIds, avoided) -> Replicas.none(mapAttemptIds.length);

    /**
     * Looks for map outputs; finds none if the directory does not answer.
     *
     * @param avoided ids of the TaskManagers at which reading has failed
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     */
    Replicas locate(long shuffleId, long[] mapAttemptIds, Set<String> avoided)
            throws ClientException.Interrupted;

    /**
     * Locates replicas as above; the TaskManager that failed may be at another address now.
     *
     * @param failed the TaskManager at which reading failed last; it is also in {@code avoided}
     */
    default Replicas locate(
            long shuffleId, long[] mapAttemptIds, Set<String> avoided, TaskManagerAddress failed)
            throws ClientException.Interrupted {
        return locate(shuffleId, mapAttemptIds, avoided);
    }
}
