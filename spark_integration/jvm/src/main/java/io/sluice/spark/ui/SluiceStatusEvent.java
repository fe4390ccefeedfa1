package io.sluice.spark.ui;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import java.util.List;
import java.util.Map;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVIndex;

/**
 * TaskManagers and counters in the event log, and in the store of the history server. Event logs
 * contain the names of this class and of its fields, so they never change.
 *
 * @param registered number of registered shuffles
 * @param counters sums over driver and executors
 * @param creditWaitNanos how long the map tasks of a stage waited for credit, by stage
 */
@JsonIgnoreProperties(ignoreUnknown = true)
public record SluiceStatusEvent(
        List<TaskManager> taskManagers,
        long registered,
        Map<String, Long> counters,
        Map<Integer, Long> creditWaitNanos)
        implements SparkListenerEvent {
    /** The store keeps the last event. */
    static final String KEY = "last";

    /**
     * A data process of a TaskManager, or an endpoint that has never answered.
     *
     * @param id empty for an endpoint that has never answered
     * @param address HOST:PORT for other hosts and, of several, the process; or the endpoint
     * @param url URL of its own page, or empty
     * @param failure why it is not reachable, or empty
     * @param mapOutputs number of its map outputs in Spark's tracker
     * @param bytes their size as Spark estimates it; -1 if there are too many to sum
     */
    @JsonIgnoreProperties(ignoreUnknown = true)
    public record TaskManager(
            String id,
            String address,
            String url,
            boolean reachable,
            String failure,
            long mapOutputs,
            long bytes) {}

    /** Used for an application that has not recorded any. */
    static final SluiceStatusEvent NONE = new SluiceStatusEvent(null, 0, null, null);

    /** Fills fields that an event of another version does not have. */
    public SluiceStatusEvent {
        taskManagers = taskManagers == null ? List.of() : taskManagers;
        counters = counters == null ? Map.of() : counters;
        creditWaitNanos = creditWaitNanos == null ? Map.of() : creditWaitNanos;
    }

    /** Returns a counter; 0 if the version that recorded the event did not have it. */
    long count(String counter) {
        return counters.getOrDefault(counter, 0L);
    }

    @KVIndex
    String key() {
        return KEY;
    }
}
