package io.sluice.spark.executor;

import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.ClientException;
import io.sluice.spark.common.DriverMessages;
import java.util.Arrays;
import java.util.List;
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
 * Asks the driver for other places of map outputs, with a deadline. Spark's own deadline for
 * questions is longer than a reader should wait. Thread safe.
 */
final class DriverPlaces implements PlaceDirectory, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DriverPlaces.class);

    private static final int THREADS = 4;

    /** Most questions that wait for a thread; there is one for each task. */
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
     * @param outdated called with a shuffle of which Spark's tracker names other places by now
     * @param timeoutMillis longest wait for an answer
     */
    DriverPlaces(Driver driver, IntConsumer outdated, long timeoutMillis) {
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
                        work -> {
                            Thread thread = new Thread(work, "sluice-places");
                            thread.setDaemon(true);
                            return thread;
                        });
        threads.allowCoreThreadTimeOut(true);
    }

    @Override
    public List<Place> places(long shuffleId, long[] mapAttemptIds, Set<String> avoided)
            throws ClientException.Interrupted {
        String[] question = DriverMessages.places((int) shuffleId, mapAttemptIds, avoided);
        String[] answer = (String[]) ask(question, "for other places of map outputs");
        if (answer == null) {
            return Arrays.asList(new Place[mapAttemptIds.length]);
        }
        DriverMessages.PlacesAnswer known = DriverMessages.PlacesAnswer.read(answer);
        if (known.isNews()) {
            outdated.accept((int) shuffleId);
        }
        return known.places();
    }

    /** Tells the driver that a task fails because map outputs can be read nowhere. */
    void leave(String taskManagerId, int shuffleId, long[] attempts)
            throws ClientException.Interrupted {
        ask(DriverMessages.leave(taskManagerId, shuffleId, attempts), "to leave a TaskManager");
    }

    /** Returns the driver's answer; null without one. */
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
            LOG.warn("The driver has not answered within {} ms: asked {}", timeoutMillis, what);
        } catch (ExecutionException | RejectedExecutionException e) {
            LOG.warn("The driver could not be asked {}", what, e);
        }
        return null;
    }

    @Override
    public void close() {
        threads.shutdownNow();
    }
}
