package io.sluice.spark.executor;

import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.NoTaskManagerException;
import java.io.IOException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reports to the driver which TaskManager this executor uses, or that it reaches none. In the
 * latter case it keeps looking, with growing pauses, because the driver may register no shuffle,
 * and so start no task, until one is reached. Thread safe.
 */
final class ReachabilityReporter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ReachabilityReporter.class);

    private static final long FIRST_PAUSE_MILLIS = 1_000;
    private static final long IDLE_THREAD_SECONDS = 30;
    private static final String NONE = "";

    /** Tries to reach a TaskManager, and tells the reporter which one it was. */
    @FunctionalInterface
    interface Probe {
        void run() throws IOException;
    }

    private final PluginContext context;
    private final Probe probe;
    private final long longestPauseMillis;
    private final ScheduledThreadPoolExecutor thread;

    /** A TaskManager's id, {@link #NONE}, or null before the first report. */
    private volatile String lastReport;

    private volatile boolean everReached;
    private boolean looking;
    private long pauseMillis = FIRST_PAUSE_MILLIS;
    private boolean closed;

    /**
     * @param longestPauseMillis longest time between two attempts
     */
    ReachabilityReporter(PluginContext context, Probe probe, long longestPauseMillis) {
        this.context = context;
        this.probe = probe;
        this.longestPauseMillis = longestPauseMillis;
        this.thread =
                new ScheduledThreadPoolExecutor(
                        1,
                        work -> {
                            Thread created = new Thread(work, "sluice-report");
                            created.setDaemon(true);
                            return created;
                        });
        thread.setKeepAliveTime(IDLE_THREAD_SECONDS, TimeUnit.SECONDS);
        thread.allowCoreThreadTimeOut(true);
    }

    /** Looks for a TaskManager now, in another thread. */
    synchronized void start() {
        look(0);
    }

    /** Returns whether this executor has ever reached a TaskManager. */
    boolean everReached() {
        return everReached;
    }

    /**
     * Called when this executor is connected to the given TaskManager.
     *
     * @param host the executor's host if the TaskManager is on it; else null
     */
    void reached(Message.HelloAck taskManager, String host) {
        String id = taskManager.taskManagerId();
        if (!id.equals(lastReport)) {
            everReached = true;
            report(
                    id,
                    DriverMessages.reached(
                            context.executorID(),
                            id,
                            taskManager.advertisedHost(),
                            taskManager.dataPort(),
                            host));
        }
    }

    /** Called when this executor reaches no TaskManager. */
    synchronized void unreachable(String why) {
        if (!NONE.equals(lastReport)) {
            LOG.warn("No TaskManager is reachable from this executor: {}", why);
            pauseMillis = FIRST_PAUSE_MILLIS;
        }
        // Repeated every time, because the driver considers the age of a report.
        report(NONE, DriverMessages.unreachable(context.executorID(), why));
        look(pauseMillis);
    }

    private synchronized void report(String state, String[] message) {
        try {
            // Sent under the lock, because the driver goes by the report that arrives last.
            context.send(message);
            lastReport = state;
        } catch (IOException e) {
            // The next connection or attempt reports again.
            lastReport = null;
            LOG.warn("The report '{}' did not reach the driver", String.join(" ", message), e);
        }
    }

    private synchronized void look(long delayMillis) {
        if (!looking && !closed) {
            looking = true;
            // No caller waits for it, and it catches its own failures.
            ScheduledFuture<?> unused =
                    thread.schedule(this::lookNow, delayMillis, TimeUnit.MILLISECONDS);
        }
    }

    private void lookNow() {
        String failure = null;
        try {
            probe.run();
        } catch (NoTaskManagerException e) {
            failure = e.reasons();
        } catch (IOException | RuntimeException e) {
            failure = e.toString();
        }
        synchronized (this) {
            looking = false;
            if (failure != null) {
                unreachable(failure);
                pauseMillis = Math.min(pauseMillis * 2, longestPauseMillis);
            }
        }
    }

    @Override
    public synchronized void close() {
        closed = true;
        thread.shutdownNow();
    }
}
