package io.sluice.spark.registration;

import io.sluice.spark.common.Compat;
import java.lang.reflect.Array;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.LongStream;
import org.apache.spark.Dependency;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.Partition;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.rdd.RDD;
import scala.collection.Iterator;

/**
 * Computes how many bytes the map tasks of a shuffle read: files of Spark SQL's scans, and outputs
 * of earlier shuffles, which are known with adaptive execution only. The size of other sources is
 * unknown.
 */
public final class InputSize {
    /** Limit for the long lineages of iterative programs. */
    private static final int MAX_RDDS = 1000;

    private final MapOutputTrackerMaster tracker;
    private final Set<RDD<?>> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Deque<RDD<?>> open = new ArrayDeque<>();

    private InputSize(MapOutputTrackerMaster tracker) {
        this.tracker = tracker;
    }

    /** Returns the size of the input; empty if any part is unknown. */
    public static OptionalLong of(ShuffleDependency<?, ?, ?> dependency) {
        return new InputSize((MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker())
                .sum(dependency.rdd());
    }

    private OptionalLong sum(RDD<?> root) {
        open.add(root);
        long bytes = 0;
        while (!open.isEmpty()) {
            RDD<?> rdd = open.remove();
            if (!seen.add(rdd)) {
                continue;
            }
            if (seen.size() > MAX_RDDS) {
                return OptionalLong.empty();
            }
            Iterator<?> dependencies = Compat.dependencies(rdd).iterator();
            OptionalLong more =
                    dependencies.hasNext() ? inputs(dependencies) : fileBytes(rdd.partitions());
            if (more.isEmpty()) {
                return more;
            }
            bytes += more.getAsLong();
        }
        return OptionalLong.of(bytes);
    }

    private OptionalLong inputs(Iterator<?> dependencies) {
        long bytes = 0;
        while (dependencies.hasNext()) {
            Dependency<?> dependency = (Dependency<?>) dependencies.next();
            if (dependency instanceof ShuffleDependency<?, ?, ?> shuffle) {
                OptionalLong written = written(shuffle);
                if (written.isEmpty()) {
                    return written;
                }
                bytes += written.getAsLong();
            } else {
                open.add(dependency.rdd());
            }
        }
        return OptionalLong.of(bytes);
    }

    private OptionalLong written(ShuffleDependency<?, ?, ?> shuffle) {
        int id = shuffle.shuffleId();
        if (!tracker.containsShuffle(id)
                || tracker.getNumAvailableOutputs(id) < shuffle.rdd().getNumPartitions()) {
            return OptionalLong.empty();
        }
        return OptionalLong.of(
                LongStream.of(tracker.getStatistics(shuffle).bytesByPartitionId()).sum());
    }

    /** Sums the files of a scan's partitions, by reflection: a program may lack Spark SQL. */
    private static OptionalLong fileBytes(Partition[] partitions) {
        long bytes = 0;
        for (Partition partition : partitions) {
            if (!partition
                    .getClass()
                    .getName()
                    .equals("org.apache.spark.sql.execution.datasources.FilePartition")) {
                return OptionalLong.empty();
            }
            try {
                Object files = partition.getClass().getMethod("files").invoke(partition);
                for (int i = 0; i < Array.getLength(files); i++) {
                    Object file = Array.get(files, i);
                    bytes += (Long) file.getClass().getMethod("length").invoke(file);
                }
            } catch (ReflectiveOperationException e) {
                return OptionalLong.empty();
            }
        }
        return OptionalLong.of(bytes);
    }
}
