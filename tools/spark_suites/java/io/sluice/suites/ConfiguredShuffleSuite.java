package io.sluice.suites;

import org.apache.spark.ShuffleSuite;

/**
 * Spark's ShuffleSuite with the settings of the run. The suite makes its own configuration without
 * the system properties, so that the shuffle manager of the run would not be used.
 */
public class ConfiguredShuffleSuite extends ShuffleSuite {
    public ConfiguredShuffleSuite() {
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith("spark.")) {
                conf().set(name, System.getProperty(name));
            }
        }
    }
}
