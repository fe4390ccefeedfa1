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
            counter(
                    "rawBytesWritten",
                    "the same before compression, where Sluice's own writer made them; Spark's"
                            + " writers do not tell");
    public final LongAdder writerSpills =
            counter(
                    "writerSpills",
                    "times Sluice's own writer sent records early because Spark needed their"
                            + " memory");
    public final LongAdder mapOutputsCommitted =
            counter("mapOutputsCommitted", "map outputs committed");
    public final LongAdder mapOutputsAborted = counter("mapOutputsAborted", "map outputs given up");
    public final LongAdder writerCreditWaitNanos =
            counter(
                    "writerCreditWaitNanos",
                    "time map tasks waited for credit to send, in nanoseconds");
    public final LongAdder regionAreaBytes =
            counter(
                    "regionAreaBytes",
                    "bytes of regions that the TaskManager took from memory shared with it; the"
                            + " others went over a socket");
    public final LongAdder localBytesRead =
            counter("localBytesRead", "stored bytes read from the executor's own TaskManager");
    public final LongAdder remoteBytesRead =
            counter("remoteBytesRead", "stored bytes read from other TaskManagers");
    public final LongAdder rawBytesRead =
            counter(
                    "rawBytesRead",
                    "bytes given to deserializers: what was read, after decompression");
    public final LongAdder streamsRead =
            counter("streamsRead", "streams read; a partition of a map output is one or several");
    public final LongAdder readerWaitNanos =
            counter(
                    "readerWaitNanos",
                    "time reduce tasks waited for data that their credit had asked for, in"
                            + " nanoseconds");
    public final LongAdder refetches =
            counter("refetches", "map outputs asked for once more after they came damaged");
    public final LongAdder reconnects =
            counter(
                    "reconnects",
                    "connections made anew in the middle of a task after a TaskManager went away");
    public final LongAdder sourceFailovers =
            counter(
                    "sourceFailovers",
                    "times a reader turned to other TaskManagers for what was left of one that"
                            + " failed");
    public final LongAdder mapOutputsRelocated =
            counter(
                    "mapOutputsRelocated",
                    "map outputs whose place in Spark's tracker the driver has changed");
    public final LongAdder fetchFailures =
            counter("fetchFailures", "fetch failures given to Spark");
    public final LongAdder endpointFailovers =
            counter(
                    "endpointFailovers",
                    "connections made to another TaskManager because the first choice did not"
                            + " answer");
    public final LongAdder fallbackShuffles =
            counter("fallbackShuffles", "shuffles that use Spark's own way");
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
                    "outputs of map tasks of pipelined shuffles, written to their end");
    public final LongAdder pipelinedBytesWritten =
            counter(
                    "pipelinedBytesWritten",
                    "bytes of records written to pipelined shuffles, 4 bytes a record included");
    public final LongAdder pipelinedBytesRead =
            counter(
                    "pipelinedBytesRead",
                    "bytes of records read from pipelined shuffles, 4 bytes a record included");

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
    }

    public void register(MetricRegistry registry) {
        counters.forEach((name, adder) -> registry.register(name, (Gauge<Long>) adder::sum));
    }
}
