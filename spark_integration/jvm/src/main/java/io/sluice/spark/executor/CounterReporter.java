package io.sluice.spark.executor;

import io.sluice.spark.common.DaemonThreads;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.SluiceMetrics;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reports the changes of this executor's counters to the driver after tasks have ended, at most
 * once a second. Thread safe.
 */
public final class CounterReporter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(CounterReporter.class);
    private static final long PAUSE_MILLIS = 1_000;

    /** Sends a message to the driver without waiting for an answer. */
    @FunctionalInterface
    public interface Sender {
        void send(String[] message) throws IOException;
    }

    private final SluiceMetrics metrics;
    private final Sender sender;
    private final Map<String, Long> reported = new HashMap<>();
    private final ScheduledThreadPoolExecutor thread;
    private boolean scheduled;

    public CounterReporter(SluiceMetrics metrics, Sender sender) {
        this.metrics = metrics;
        this.sender = sender;
        this.thread = DaemonThreads.single("sluice-counters");
    }

    /** Called after a task has ended. */
    public synchronized void taskEnded() {
        if (!scheduled && !thread.isShutdown()) {
            scheduled = true;
            // No caller waits for it, and it catches its own failures.
            ScheduledFuture<?> unused =
                    thread.schedule(this::report, PAUSE_MILLIS, TimeUnit.MILLISECONDS);
        }
    }

    private synchronized void report() {
        scheduled = false;
        reportCounters();
        reportCreditWaits();
    }

    private void reportCounters() {
        Map<String, Long> now = metrics.snapshot();
        Map<String, Long> more = new HashMap<>();
        now.forEach(
                (name, value) -> {
                    long before = reported.getOrDefault(name, 0L);
                    if (value != before) {
                        more.put(name, value - before);
                    }
                });
        if (more.isEmpty()) {
            return;
        }
        try {
            sender.send(DriverMessages.counters(more));
            reported.putAll(now);
        } catch (IOException | RuntimeException e) {
            // The next report includes these counts.
            LOG.debug("The counters did not reach the driver", e);
        }
    }

    private void reportCreditWaits() {
        Map<Integer, Long> waits = metrics.creditWaits().take();
        if (waits.isEmpty()) {
            return;
        }
        try {
            sender.send(DriverMessages.creditWaits(waits));
        } catch (IOException | RuntimeException e) {
            metrics.creditWaits().addAll(waits);
            LOG.debug("The waits for credit did not reach the driver", e);
        }
    }

    /** Reports the remaining counts. */
    @Override
    public void close() {
        report();
        thread.shutdownNow();
    }
}
