package io.sluice.suites;

import org.apache.spark.ShuffleSuite;

/** Spark's ShuffleSuite with the settings of the run. */
public class ConfiguredShuffleSuite extends ShuffleSuite {
    public ConfiguredShuffleSuite() {
        RunSettings.addTo(conf());
    }
}
