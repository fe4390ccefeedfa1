package io.sluice.spark.outputs;

import io.sluice.spark.SluiceShuffleDataIO;
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
 * Tells Spark which executors hold shuffle outputs. Spark treats all shuffles of an application
 * alike, but executors hold only the outputs of shuffles that are left to Spark.
 *
 * <ul>
 *   <li>When an executor is lost, this class unregisters its outputs. Spark does not, because
 *       {@link SluiceShuffleDataIO} has told it that outputs survive executors.
 *   <li>Outputs of shuffles that go through Sluice do not keep an idle executor. Spark's monitor
 *       assumes that the output of every map task stays in its executor.
 * </ul>
 *
 * <p>Used by the thread of one queue of Spark's listener bus.
 */
public final class ExecutorOutputs extends SparkListener {
    /** Its own queue: a slow listener of the application must not delay or drop its events. */
    public static final String QUEUE = "sluice";

    private static final Logger LOG = LoggerFactory.getLogger(ExecutorOutputs.class);

    private final IntPredicate goesThroughSluice;
    private final ToIntFunction<String> forget;
    private final IntConsumer holdsNoExecutor;

    /** Shuffles that go through Sluice, by the stages of running jobs that write them. */
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

    /**
     * Spark's scheduler removes the block manager while it handles the loss of an executor, however
     * it learns of the loss. {@code onExecutorRemoved} may come seconds later, with the reason.
     */
    @Override
    public void onBlockManagerRemoved(SparkListenerBlockManagerRemoved event) {
        executorLost(event.blockManagerId().executorId());
    }

    void executorLost(String executorId) {
        int forgotten = forget.applyAsInt(executorId);
        if (forgotten > 0) {
            LOG.info(
                    "Executor {} is lost with {} map outputs of shuffles that are left to Spark;"
                            + " their map tasks run again when the outputs are needed",
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

    /** Forgets the job's stages; from now on Spark's monitor ignores their outputs too. */
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

    /**
     * Spark's monitor handles this event before the one sent here, because its queue is ordered.
     */
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
