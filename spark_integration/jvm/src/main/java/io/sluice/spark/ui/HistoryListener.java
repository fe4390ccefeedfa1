package io.sluice.spark.ui;

import io.sluice.spark.registration.ShuffleTable;
import java.util.TreeSet;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVStore;

/** Writes the events of Sluice in an event log to the store of the history server. */
final class HistoryListener extends SparkListener {
    private final KVStore store;
    private final TreeSet<Integer> shuffles = new TreeSet<>();

    HistoryListener(KVStore store) {
        this.store = store;
    }

    @Override
    public void onOtherEvent(SparkListenerEvent event) {
        try {
            if (event instanceof SluiceStatusEvent) {
                store.write(event);
            } else if (event instanceof SluiceShuffleEvent shuffle) {
                store.write(shuffle);
                shuffles.add(shuffle.shuffleId());
                if (shuffles.size() > ShuffleTable.MAX_SHUFFLES) {
                    store.delete(SluiceShuffleEvent.class, shuffles.pollFirst());
                }
            }
        } catch (Exception e) {
            throw new IllegalStateException("an event of Sluice cannot be stored", e);
        }
    }
}
