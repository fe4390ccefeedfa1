package io.sluice.spark.ui;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import io.sluice.spark.registration.ShuffleTable;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVIndex;

/**
 * A shuffle in the event log, and in the store of the history server. Event logs contain the names
 * of this class and of its fields, so they never change.
 *
 * @param policy the policy that chose Spark's own shuffle; empty for Sluice
 * @param stageId the newest stage that writes it; -1 before the first
 * @param bytes stored bytes of the map stages that have ended
 * @param released whether Spark has released it
 */
@JsonIgnoreProperties(ignoreUnknown = true)
public record SluiceShuffleEvent(
        int shuffleId,
        int maps,
        int partitions,
        String policy,
        String reason,
        int stageId,
        long records,
        long bytes,
        boolean released)
        implements SparkListenerEvent {

    /** Fills fields that an event of another version does not have. */
    public SluiceShuffleEvent {
        policy = policy == null ? "" : policy;
        reason = reason == null ? "" : reason;
    }

    static SluiceShuffleEvent of(ShuffleTable.Row row) {
        return new SluiceShuffleEvent(
                row.shuffleId(),
                row.maps(),
                row.partitions(),
                row.decision().policy(),
                row.decision().reason(),
                row.stageId(),
                row.records(),
                row.bytes(),
                row.released());
    }

    // The index is declared here, because one at the component would be found twice.
    @Override
    @KVIndex
    public int shuffleId() {
        return shuffleId;
    }
}
