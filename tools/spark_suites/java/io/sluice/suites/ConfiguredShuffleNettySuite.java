package io.sluice.suites;

import org.apache.spark.ShuffleNettyNioSuite;

/** Spark's ShuffleNettyNioSuite with the settings of the run. */
public class ConfiguredShuffleNettySuite extends ShuffleNettyNioSuite {
    public ConfiguredShuffleNettySuite() {
        RunSettings.addTo(conf());
    }
}
