package io.sluice.spark;

import io.sluice.spark.driver.DriverRuntime;
import java.io.IOException;
import java.io.ObjectOutputStream;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;

/** A shuffle that goes through TaskManagers. It has the handle for Spark's writers. */
public final class SluiceShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
    private static final long serialVersionUID = 1L;

    private final ShuffleHandle sparkHandle;

    /** Set when the task binary is serialized, as Spark submits the map stage. */
    private boolean prefersHosts;

    SluiceShuffleHandle(
            int shuffleId, ShuffleDependency<K, V, C> dependency, ShuffleHandle sparkHandle) {
        super(shuffleId, dependency);
        this.sparkHandle = sparkHandle;
    }

    private void writeObject(ObjectOutputStream out) throws IOException {
        DriverRuntime driver = DriverRuntime.current();
        prefersHosts = driver != null && driver.locality().prefersHosts();
        out.defaultWriteObject();
    }

    /** Returns whether map outputs name the hosts that have them; for map tasks. */
    boolean prefersHosts() {
        return prefersHosts;
    }

    ShuffleHandle sparkHandle() {
        return sparkHandle;
    }
}
