package io.sluice.spark.ui;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.status.StageDataWrapper;
import org.apache.spark.status.api.v1.StageData;
import org.apache.spark.util.kvstore.KVStore;
import org.apache.spark.util.kvstore.KVStoreIterator;

/**
 * A stage attempt that writes or reads shuffles, as Spark counts it: sums over its tasks.
 *
 * @param name the description of its job, which is shortened, or Spark's name of the stage
 * @param bytesWritten stored bytes, also of Spark's own shuffles, as all below
 * @param writeNanos time its tasks spent on writing, waits included
 * @param creditWaitNanos how long the map tasks of the stage waited for credit
 * @param localBytesRead stored bytes from the executor's own TaskManager
 * @param fetchWaitMillis how long its tasks waited for data
 */
record StageRow(
        int stageId,
        int attempt,
        String name,
        String status,
        long bytesWritten,
        long writeNanos,
        long creditWaitNanos,
        long localBytesRead,
        long remoteBytesRead,
        long fetchWaitMillis) {
    /** Maximum length of a name; a description may be a whole query. */
    private static final int MAX_NAME = 120;

    /**
     * Reads the stages from the store of Spark's UI, which keeps the newest ones.
     *
     * @param creditWaitNanos by stage
     * @return the newest first
     */
    static List<StageRow> read(KVStore store, Map<Integer, Long> creditWaitNanos) {
        List<StageRow> rows = new ArrayList<>();
        try (KVStoreIterator<StageDataWrapper> stages =
                store.view(StageDataWrapper.class).index("stageId").reverse().closeableIterator()) {
            while (stages.hasNext()) {
                StageData stage = stages.next().info();
                if (stage.shuffleWriteBytes() + stage.shuffleReadBytes() > 0) {
                    rows.add(of(stage, creditWaitNanos.getOrDefault(stage.stageId(), 0L)));
                }
            }
        } catch (Exception e) {
            throw new IllegalStateException("the stages cannot be read from Spark's store", e);
        }
        return rows;
    }

    private static String name(StageData stage) {
        String name =
                stage.description().isDefined() && !stage.description().get().isBlank()
                        ? stage.description().get()
                        : stage.name();
        return name.length() <= MAX_NAME ? name : name.substring(0, MAX_NAME - 1) + "…";
    }

    private static StageRow of(StageData stage, long creditWaitNanos) {
        return new StageRow(
                stage.stageId(),
                stage.attemptId(),
                name(stage),
                stage.status().toString().toLowerCase(Locale.ROOT),
                stage.shuffleWriteBytes(),
                stage.shuffleWriteTime(),
                creditWaitNanos,
                stage.shuffleLocalBytesRead(),
                stage.shuffleRemoteBytesRead(),
                stage.shuffleFetchWaitTime());
    }
}
