package io.sluice.spark.common;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/**
 * The counters of an executor or the driver, in Spark's metrics system. A test compares them with
 * docs/reference/metrics.md.
 */
public final class SluiceMetrics {
    public static final SluiceMetrics INSTANCE = new SluiceMetrics();

    private final Map<String, String> meanings = new LinkedHashMap<>();
    private final Map<String, LongAdder> counters = new LinkedHashMap<>();

    public final LongAdder bytesWritten =
            counter(
                    "bytesWritten",
                    "bytes of committed map outputs as stored, block headers included");
    public final LongAdder rawBytesWritten =
            counter("rawBytesWritten", "the same before compression, of Sluice's own writer only");
    public final LongAdder writerSpills =
            counter(
                    "writerSpills",
                    "times Sluice's own writer sent records early because Spark needed their"
                            + " memory");
    public final LongAdder mapOutputsCommitted =
            counter("mapOutputsCommitted", "map outputs committed");
    public final LongAdder mapOutputsAborted = counter("mapOutputsAborted", "map outputs aborted");
    public final LongAdder writerCreditWaitNanos =
            counter("writerCreditWaitNanos", "time map tasks waited for credit, in nanoseconds");
    public final LongAdder regionAreaBytes =
            counter(
                    "regionAreaBytes",
                    "bytes of regions sent through memory shared with the TaskManager, not a"
                            + " socket");
    public final LongAdder localBytesRead =
            counter("localBytesRead", "stored bytes read from the executor's own TaskManager");
    public final LongAdder remoteBytesRead =
            counter("remoteBytesRead", "stored bytes read from other TaskManagers");
    public final LongAdder rawBytesRead =
            counter("rawBytesRead", "bytes read by deserializers, after decompression");
    public final LongAdder streamsRead =
            counter("streamsRead", "streams read; a partition of a map output has one or several");
    public final LongAdder readerWaitNanos =
            counter("readerWaitNanos", "time reduce tasks waited for data, in nanoseconds");
    public final LongAdder refetches =
            counter("refetches", "map outputs requested a second time because they were damaged");
    public final LongAdder reconnects =
            counter(
                    "reconnects",
                    "connections replaced during a task because a TaskManager was lost");
    public final LongAdder sourceFailovers =
            counter(
                    "sourceFailovers",
                    "times a reader switched from a failed TaskManager to replicas");
    public final LongAdder mapOutputsRelocated =
            counter(
                    "mapOutputsRelocated",
                    "map outputs whose location in Spark's tracker the driver has changed");
    public final LongAdder fetchFailures =
            counter("fetchFailures", "fetch failures reported to Spark");
    public final LongAdder endpointFailovers =
            counter(
                    "endpointFailovers",
                    "connections to another TaskManager because the first choice did not answer");
    public final LongAdder fallbackShuffles =
            counter("fallbackShuffles", "shuffles that use Spark's own shuffle");
    public final LongAdder fallbackDisabled =
            counter("fallbackDisabled", "of these, by the policy `disabled`");
    public final LongAdder fallbackUnsupported =
            counter("fallbackUnsupported", "of these, by the policy `unsupported`");
    public final LongAdder fallbackTooSmall =
            counter("fallbackTooSmall", "of these, by the policy `too-small`");
    public final LongAdder fallbackNoTaskManager =
            counter("fallbackNoTaskManager", "of these, by the policy `no-taskmanager`");

    public final LongAdder pipelinedPartitionsWritten =
            counter(
                    "pipelinedPartitionsWritten",
                    "pipelined outputs of map tasks written completely");
    public final LongAdder pipelinedBytesWritten =
            counter(
                    "pipelinedBytesWritten",
                    "bytes of records written to pipelined shuffles, with 4 bytes for each length");
    public final LongAdder pipelinedBytesRead =
            counter(
                    "pipelinedBytesRead",
                    "bytes of records read from pipelined shuffles, with 4 bytes for each length");

    private final StageWaits creditWaits = new StageWaits();

    public SluiceMetrics() {}

    private LongAdder counter(String name, String meaning) {
        LongAdder adder = new LongAdder();
        meanings.put(name, meaning);
        counters.put(name, adder);
        return adder;
    }

    /** Returns the meanings by name, in the order of the reference page. */
    public Map<String, String> meanings() {
        return Collections.unmodifiableMap(meanings);
    }

    /** Returns how long map tasks waited for credit, by stage. */
    public StageWaits creditWaits() {
        return creditWaits;
    }

    /** Returns the current values by name, in the order of {@link #meanings}. */
    public Map<String, Long> snapshot() {
        Map<String, Long> values = new LinkedHashMap<>();
        counters.forEach((name, adder) -> values.put(name, adder.sum()));
        return values;
    }

    public long value(String name) {
        return counters.get(name).sum();
    }

    /** Sets all counters to zero for the next application of the JVM. */
    public void reset() {
        counters.values().forEach(LongAdder::reset);
        Map<Integer, Long> unused = creditWaits.take();
    }

    public void register(MetricRegistry registry) {
        counters.forEach((name, adder) -> registry.register(name, (Gauge<Long>) adder::sum));
    }
}
