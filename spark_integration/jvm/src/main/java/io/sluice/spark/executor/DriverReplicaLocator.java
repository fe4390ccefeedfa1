package io.sluice.spark.executor;

import io.sluice.client.failover.ReplicaLocator;
import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.client.wire.ClientException;
import io.sluice.spark.common.DaemonThreads;
import io.sluice.spark.common.DriverMessages;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.IntConsumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks the driver for replicas of map outputs, with a shorter deadline than Spark's own. Thread
 * safe.
 */
final class DriverReplicaLocator implements ReplicaLocator, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DriverReplicaLocator.class);

    private static final int THREADS = 4;

    /** Maximum number of queued requests; each task has at most one. */
    private static final int MAX_WAITING = 1024;

    private static final long IDLE_THREAD_SECONDS = 30;

    /** Asks the driver's plugin and waits for its answer. */
    @FunctionalInterface
    interface Driver {
        Object ask(Object message) throws Exception;
    }

    private final Driver driver;
    private final IntConsumer outdated;
    private final long timeoutMillis;
    private final ThreadPoolExecutor threads;

    /**
     * @param outdated called with a shuffle whose map outputs have changed in Spark's tracker
     * @param timeoutMillis longest wait for an answer
     */
    DriverReplicaLocator(Driver driver, IntConsumer outdated, long timeoutMillis) {
        this.driver = driver;
        this.outdated = outdated;
        this.timeoutMillis = timeoutMillis;
        this.threads =
                new ThreadPoolExecutor(
                        THREADS,
                        THREADS,
                        IDLE_THREAD_SECONDS,
                        TimeUnit.SECONDS,
                        new LinkedBlockingQueue<>(MAX_WAITING),
                        DaemonThreads.named("sluice-replicas"));
        threads.allowCoreThreadTimeOut(true);
    }

    @Override
    public Replicas locate(long shuffleId, long[] mapAttemptIds, Set<String> avoided)
            throws ClientException.Interrupted {
        return locate(shuffleId, mapAttemptIds, avoided, null);
    }

    @Override
    public Replicas locate(
            long shuffleId, long[] mapAttemptIds, Set<String> avoided, TaskManagerAddress failed)
            throws ClientException.Interrupted {
        String[] question =
                DriverMessages.replicas((int) shuffleId, mapAttemptIds, avoided, failed);
        String[] answer = (String[]) ask(question, "for replicas of map outputs");
        if (answer == null) {
            return Replicas.none(mapAttemptIds.length);
        }
        DriverMessages.ReplicasAnswer known = DriverMessages.ReplicasAnswer.read(answer);
        if (known.isOutdated()) {
            outdated.accept((int) shuffleId);
        }
        return known.replicas();
    }

    /** Reports map outputs that the task could not read from any TaskManager. */
    void reportUnreadable(String taskManagerId, int shuffleId, long[] attempts)
            throws ClientException.Interrupted {
        ask(
                DriverMessages.unreadable(taskManagerId, shuffleId, attempts),
                "to record unreadable map outputs");
    }

    /** Returns the driver's answer, or null if there is none. */
    private Object ask(String[] question, String what) throws ClientException.Interrupted {
        Future<Object> answer = null;
        try {
            answer = threads.submit(() -> driver.ask(question));
            return answer.get(timeoutMillis, TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            throw new ClientException.Interrupted("interrupted while asking the driver " + what);
        } catch (TimeoutException e) {
            answer.cancel(true);
            LOG.warn("The driver did not answer within {} ms: asked {}", timeoutMillis, what);
        } catch (ExecutionException | RejectedExecutionException e) {
            LOG.warn("Could not ask the driver {}", what, e);
        }
        return null;
    }

    @Override
    public void close() {
        threads.shutdownNow();
    }
}
