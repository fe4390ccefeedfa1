package io.sluice.spark.writer;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.checksum.RowBasedChecksum;

/**
 * Spark's checksums of the rows of a map task, which detect that a retry produced other rows. Must
 * not be loaded before 4.1.
 */
final class RowChecksums {
    private final RowBasedChecksum[] checksums;

    private RowChecksums(RowBasedChecksum[] checksums) {
        this.checksums = checksums;
    }

    /** Returns the checksums of the dependency; null if it has none. */
    static RowChecksums of(ShuffleDependency<?, ?, ?> dependency) {
        RowBasedChecksum[] checksums = dependency.rowBasedChecksums();
        return checksums == null || checksums.length == 0 ? null : new RowChecksums(checksums);
    }

    void update(int partition, Object key, Object value) {
        checksums[partition].update(key, value);
    }

    /** Returns the checksum of all partitions together, for the map status. */
    long value() {
        return RowBasedChecksum.getAggregatedChecksumValue(checksums);
    }
}
