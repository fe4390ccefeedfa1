package io.sluice.spark.outputs;

import io.sluice.spark.common.Compat;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntConsumer;
import java.util.function.IntPredicate;
import java.util.function.ToIntFunction;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerBlockManagerRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.StageInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.Iterator;

/**
 * Tells Spark which executors hold shuffle outputs: those of shuffles that use Spark's own shuffle.
 *
 * <ul>
 *   <li>It unregisters the outputs of a lost executor. Spark does not, because the plugin's {@code
 *       ShuffleDataIO} declares that outputs survive executors.
 *   <li>It releases executors whose outputs are in TaskManagers. Spark's monitor assumes that every
 *       executor holds the outputs of its map tasks.
 * </ul>
 *
 * <p>Used by the thread of one queue of Spark's listener bus.
 */
public final class ExecutorOutputs extends SparkListener {
    /** A queue of its own, because slow listeners of the application delay or drop events. */
    public static final String QUEUE = "sluice";

    private static final Logger LOG = LoggerFactory.getLogger(ExecutorOutputs.class);

    private final IntPredicate goesThroughSluice;
    private final ToIntFunction<String> forget;
    private final IntConsumer holdsNoExecutor;

    /** Shuffles that go through Sluice, by the stage that writes them. */
    private final Map<Integer, Integer> shufflesByStage = new HashMap<>();

    private final Map<Integer, List<Integer>> stagesByJob = new HashMap<>();

    /**
     * @param goesThroughSluice whether a shuffle goes through Sluice
     * @param forget unregisters the outputs that an executor held; returns their number
     * @param holdsNoExecutor tells Spark's monitor that no executor holds outputs of a shuffle
     */
    public ExecutorOutputs(
            IntPredicate goesThroughSluice,
            ToIntFunction<String> forget,
            IntConsumer holdsNoExecutor) {
        this.goesThroughSluice = goesThroughSluice;
        this.forget = forget;
        this.holdsNoExecutor = holdsNoExecutor;
    }

    /** Comes with the loss of an executor; {@code onExecutorRemoved} may come seconds later. */
    @Override
    public void onBlockManagerRemoved(SparkListenerBlockManagerRemoved event) {
        executorLost(event.blockManagerId().executorId());
    }

    void executorLost(String executorId) {
        int forgotten = forget.applyAsInt(executorId);
        if (forgotten > 0) {
            LOG.info(
                    "Executor {} is lost with {} map outputs of Spark's own shuffles; their map"
                            + " tasks run again when the outputs are needed",
                    executorId,
                    forgotten);
        }
    }

    @Override
    public void onJobStart(SparkListenerJobStart event) {
        Map<Integer, Integer> shuffles = new HashMap<>();
        Iterator<?> infos = Compat.stageInfos(event).iterator();
        while (infos.hasNext()) {
            StageInfo stage = (StageInfo) infos.next();
            if (stage.shuffleDepId().isDefined()) {
                shuffles.put(stage.stageId(), (Integer) stage.shuffleDepId().get());
            }
        }
        jobStarted(event.jobId(), shuffles);
    }

    /**
     * @param shuffles the shuffles that stages of the job write, by stage
     */
    void jobStarted(int jobId, Map<Integer, Integer> shuffles) {
        shuffles.values().removeIf(shuffleId -> !goesThroughSluice.test(shuffleId));
        shufflesByStage.putAll(shuffles);
        stagesByJob.put(jobId, List.copyOf(shuffles.keySet()));
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
        jobEnded(event.jobId());
    }

    void jobEnded(int jobId) {
        List<Integer> stages = stagesByJob.remove(jobId);
        if (stages != null) {
            stages.forEach(shufflesByStage::remove);
        }
    }

    /** The monitor handles this event before the one sent here: its queue is ordered. */
    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
        if (event.reason() == Success$.MODULE$) {
            taskSucceeded(event.stageId());
        }
    }

    void taskSucceeded(int stageId) {
        Integer shuffleId = shufflesByStage.get(stageId);
        if (shuffleId != null) {
            holdsNoExecutor.accept(shuffleId);
        }
    }
}
