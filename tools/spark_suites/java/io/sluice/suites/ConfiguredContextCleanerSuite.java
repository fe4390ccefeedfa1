package io.sluice.suites;

import org.apache.spark.ContextCleanerSuite;

/** Spark's ContextCleanerSuite with the settings of the run: its own name a shuffle manager. */
public class ConfiguredContextCleanerSuite extends ContextCleanerSuite {
    public ConfiguredContextCleanerSuite() {
        RunSettings.addTo(conf());
    }
}
