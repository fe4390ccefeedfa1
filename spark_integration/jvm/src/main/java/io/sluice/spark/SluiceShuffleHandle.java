package io.sluice.spark;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;

/**
 * A shuffle that goes through TaskManagers. It contains the handle that chooses among Spark's
 * writers.
 */
public final class SluiceShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
    private static final long serialVersionUID = 1L;

    private final ShuffleHandle sparkHandle;

    SluiceShuffleHandle(
            int shuffleId, ShuffleDependency<K, V, C> dependency, ShuffleHandle sparkHandle) {
        super(shuffleId, dependency);
        this.sparkHandle = sparkHandle;
    }

    ShuffleHandle sparkHandle() {
        return sparkHandle;
    }
}
