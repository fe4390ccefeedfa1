package io.sluice.suites;

import org.apache.spark.SparkConf;

/**
 * The settings of the run, for suites whose configuration does not read the system properties: the
 * shuffle manager of the run would not be used.
 */
final class RunSettings {
    private RunSettings() {}

    static void addTo(SparkConf conf) {
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith("spark.")) {
                conf.set(name, System.getProperty(name));
            }
        }
    }
}
