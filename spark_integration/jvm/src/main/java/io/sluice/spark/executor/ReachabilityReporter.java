package io.sluice.spark.executor;

import io.sluice.client.failover.Backoff;
import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DaemonThreads;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.NoTaskManagerException;
import io.sluice.spark.common.ReachedProcesses;
import java.io.IOException;
import java.util.Objects;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reports to the driver which TaskManager this executor uses, or that it reaches none. It then
 * keeps probing, because the driver may start no task until a TaskManager is reached. Thread safe.
 */
final class ReachabilityReporter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ReachabilityReporter.class);

    private static final long FIRST_PAUSE_MILLIS = 1_000;

    /** Tries to reach a TaskManager, and reports it. */
    @FunctionalInterface
    interface Probe {
        void run() throws IOException;
    }

    private final PluginContext context;
    private final Probe probe;
    private final Backoff backoff;
    private final ScheduledThreadPoolExecutor thread;

    /** {@link ReachedProcesses#NONE} if none is reached; null before the first report. */
    private volatile ReachedProcesses lastReport;

    /** The host in the last report. */
    private volatile String lastHost;

    private volatile boolean everReached;
    private boolean probing;
    private boolean closed;

    /**
     * @param maxPauseMillis longest pause between two attempts
     */
    ReachabilityReporter(PluginContext context, Probe probe, long maxPauseMillis) {
        this.context = context;
        this.probe = probe;
        this.backoff = new Backoff(FIRST_PAUSE_MILLIS, maxPauseMillis);
        this.thread = DaemonThreads.single("sluice-report");
    }

    /** Probes now, in another thread. */
    synchronized void start() {
        probeAfter(0);
    }

    /** Returns whether this executor has ever reached a TaskManager. */
    boolean everReached() {
        return everReached;
    }

    /**
     * Called when this executor is connected to a data process of a TaskManager.
     *
     * @param host the host of both; null if they are on different hosts
     */
    void reached(Message.HelloAck taskManager, String host) {
        DriverMessages.Reached reached =
                DriverMessages.Reached.of(context.executorID(), taskManager, host);
        if (!isReported(reached)) {
            report(reached);
        }
    }

    private boolean isReported(DriverMessages.Reached reached) {
        ReachedProcesses last = lastReport;
        return last != null
                && Objects.equals(reached.ownHost(), lastHost)
                && reached.taskManager().equals(last.taskManager())
                && reached.taskManagerId().equals(last.ids().get(reached.process()));
    }

    private synchronized void report(DriverMessages.Reached reached) {
        everReached = true;
        ReachedProcesses before = lastReport == null ? ReachedProcesses.NONE : lastReport;
        lastHost = reached.ownHost();
        report(before.with(reached), reached.message());
    }

    /** Reports the next connection again, unless the driver knows the last reported one. */
    synchronized void forgetUnless(Predicate<DataProcesses> isKnown) {
        ReachedProcesses last = lastReport;
        if (last != null && last.taskManager() != null && !isKnown.test(last.taskManager())) {
            lastReport = null;
        }
    }

    /** Does other work in the same thread, periodically. */
    synchronized void every(long millis, Runnable work) {
        // It ends with the thread.
        ScheduledFuture<?> unused =
                thread.scheduleWithFixedDelay(
                        () -> {
                            try {
                                work.run();
                            } catch (RuntimeException e) {
                                // The executor would not run it again after an exception.
                                LOG.warn("Periodic work failed", e);
                            }
                        },
                        0,
                        millis,
                        TimeUnit.MILLISECONDS);
    }

    /** Called when this executor reaches no TaskManager. */
    synchronized void unreachable(String why) {
        if (!ReachedProcesses.NONE.equals(lastReport)) {
            LOG.warn("No TaskManager is reachable from this executor: {}", why);
            backoff.reset();
        }
        // Repeated, because the driver considers the age of a report.
        report(ReachedProcesses.NONE, DriverMessages.unreachable(context.executorID(), why));
        probeAfter(backoff.nextMillis());
    }

    private synchronized void report(ReachedProcesses state, String[] message) {
        try {
            // Under the lock, because the last report to arrive counts.
            context.send(message);
            lastReport = state;
        } catch (IOException e) {
            // The next connection or attempt reports again.
            lastReport = null;
            LOG.warn("The report '{}' did not reach the driver", String.join(" ", message), e);
        }
    }

    private synchronized void probeAfter(long delayMillis) {
        if (!probing && !closed) {
            probing = true;
            // No caller waits for it, and it catches its own failures.
            ScheduledFuture<?> unused =
                    thread.schedule(this::probeNow, delayMillis, TimeUnit.MILLISECONDS);
        }
    }

    private void probeNow() {
        String failure = null;
        try {
            probe.run();
        } catch (NoTaskManagerException e) {
            failure = e.reasons();
        } catch (IOException | RuntimeException e) {
            failure = e.toString();
        }
        synchronized (this) {
            probing = false;
            if (failure != null) {
                unreachable(failure);
            }
        }
    }

    @Override
    public synchronized void close() {
        closed = true;
        thread.shutdownNow();
    }
}
