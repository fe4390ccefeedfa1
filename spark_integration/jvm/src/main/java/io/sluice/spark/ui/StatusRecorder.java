package io.sluice.spark.ui;

import io.sluice.spark.driver.DriverRuntime;
import io.sluice.spark.registration.ShuffleTable;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerStageCompleted;

/**
 * Posts what the tab in the history server shows as events for Spark's event log: a shuffle when a
 * stage that writes it ends; TaskManagers and counters at the end of a stage, at most every ten
 * seconds; and all changes at the end of the application. Thread safe.
 */
public final class StatusRecorder extends SparkListener {
    private static final long PAUSE_NANOS = TimeUnit.SECONDS.toNanos(10);

    private final ShuffleTable shuffles;
    private final Supplier<SluiceStatusEvent> status;
    private final Consumer<SparkListenerEvent> post;
    private final LongSupplier nanoTime;

    /** As many as there are in the table, which forgets the oldest too. */
    private final Map<Integer, SluiceShuffleEvent> posted =
            new LinkedHashMap<>() {
                private static final long serialVersionUID = 1L;

                @Override
                protected boolean removeEldestEntry(Map.Entry<Integer, SluiceShuffleEvent> eldest) {
                    return size() > ShuffleTable.MAX_SHUFFLES;
                }
            };

    private SluiceStatusEvent postedStatus;
    private long statusNanos;

    /**
     * @param nanoTime as {@code System.nanoTime}
     */
    StatusRecorder(
            ShuffleTable shuffles,
            Supplier<SluiceStatusEvent> status,
            Consumer<SparkListenerEvent> post,
            LongSupplier nanoTime) {
        this.shuffles = shuffles;
        this.status = status;
        this.post = post;
        this.nanoTime = nanoTime;
    }

    /**
     * Starts recording, behind the listeners that the context has already.
     *
     * @return null if the application has no event log
     */
    public static StatusRecorder start(SparkContext context, DriverRuntime runtime) {
        if (!context.isEventLogEnabled()) {
            return null;
        }
        StatusRecorder recorder =
                new StatusRecorder(
                        runtime.shuffles(),
                        () -> LiveStatus.event(runtime),
                        context.listenerBus()::post,
                        System::nanoTime);
        context.addSparkListener(recorder);
        return recorder;
    }

    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
        if (event.stageInfo().shuffleDepId().isDefined()) {
            written((Integer) event.stageInfo().shuffleDepId().get());
        }
        stageEnded();
    }

    synchronized void written(int shuffleId) {
        ShuffleTable.Row row = shuffles.row(shuffleId);
        if (row != null) {
            postIfChanged(row);
        }
    }

    synchronized void stageEnded() {
        if (postedStatus == null || nanoTime.getAsLong() - statusNanos >= PAUSE_NANOS) {
            postStatus();
        }
    }

    /** On Spark 3.5 the plugin is shut down when no event can be posted any longer. */
    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
        applicationEnds();
    }

    /** Posts all that has changed since it was posted. */
    public synchronized void applicationEnds() {
        List<ShuffleTable.Row> newest = shuffles.newest();
        for (int i = newest.size() - 1; i >= 0; i--) {
            postIfChanged(newest.get(i));
        }
        postStatus();
    }

    private void postIfChanged(ShuffleTable.Row row) {
        SluiceShuffleEvent event = SluiceShuffleEvent.of(row);
        if (!event.equals(posted.put(event.shuffleId(), event))) {
            post.accept(event);
        }
    }

    private void postStatus() {
        SluiceStatusEvent now = status.get();
        statusNanos = nanoTime.getAsLong();
        if (!now.equals(postedStatus)) {
            post.accept(now);
            postedStatus = now;
        }
    }
}
