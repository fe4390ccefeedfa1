package io.sluice.spark.executor;

import io.sluice.client.gate.Gate;
import java.util.concurrent.TimeUnit;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;

/** Reports the counters of a gate to Spark's read metrics. */
public final class GateMetrics {
    private final ShuffleReadMetricsReporter metrics;
    private long localBytes;
    private long remoteBytes;
    private long waitedNanos;

    public GateMetrics(ShuffleReadMetricsReporter metrics) {
        this.metrics = metrics;
    }

    /** Changes of counters since the previous report. */
    public record Changes(long localBytes, long remoteBytes, long waitedNanos) {}

    /** Reports and returns the changes since the previous report. */
    public Changes report(Gate<?> gate, long records) {
        long local = gate.localBytes();
        long remote = gate.remoteBytes();
        long waited = gate.waitedNanos();
        Changes changes =
                new Changes(local - localBytes, remote - remoteBytes, waited - waitedNanos);
        metrics.incRecordsRead(records);
        metrics.incLocalBytesRead(changes.localBytes());
        metrics.incRemoteBytesRead(changes.remoteBytes());
        metrics.incFetchWaitTime(
                TimeUnit.NANOSECONDS.toMillis(waited) - TimeUnit.NANOSECONDS.toMillis(waitedNanos));
        localBytes = local;
        remoteBytes = remote;
        waitedNanos = waited;
        return changes;
    }
}
