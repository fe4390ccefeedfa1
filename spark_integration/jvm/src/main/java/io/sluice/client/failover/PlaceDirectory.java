package io.sluice.client.failover;

import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/** Knows other TaskManagers at which map outputs can be read. It is asked after a failure only. */
@FunctionalInterface
public interface PlaceDirectory {
    /** Knows of no other places. */
    PlaceDirectory EMPTY =
            (shuffleId, mapAttemptIds, avoided) -> Arrays.asList(new Place[mapAttemptIds.length]);

    /**
     * A TaskManager that has map outputs.
     *
     * @param taskManagerId the TaskManager's own id
     * @param host its address for other hosts
     * @param port its data port
     */
    record Place(String taskManagerId, String host, int port) {
        /**
         * Reads a place from the value of {@link ErrorCode#PARTITION_MOVED}, {@code ID HOST:PORT}.
         *
         * @return null if the text is not a place
         */
        public static Place parse(String text) {
            int space = text.indexOf(' ');
            if (space <= 0) {
                return null;
            }
            try {
                Endpoint endpoint = Endpoint.parse(text.substring(space + 1), "");
                return endpoint.isUnix()
                        ? null
                        : new Place(text.substring(0, space), endpoint.host(), endpoint.port());
            } catch (IllegalArgumentException e) {
                return null;
            }
        }
    }

    /**
     * Returns for each map output a place where it can be read, or null if none is known. A
     * directory that cannot be asked knows of none.
     *
     * @param avoided ids of the TaskManagers at which reading has failed
     * @throws ClientException.Interrupted if the thread was interrupted meanwhile
     */
    List<Place> places(long shuffleId, long[] mapAttemptIds, Set<String> avoided)
            throws ClientException.Interrupted;
}
