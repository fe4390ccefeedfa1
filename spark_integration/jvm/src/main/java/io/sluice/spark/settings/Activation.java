package io.sluice.spark.settings;

import java.util.function.BiConsumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reports at the start of an application whether its shuffles go through Sluice: in the log, at a
 * level that PySpark shows, and in {@value SluiceSettings#ACTIVE}.
 */
public final class Activation {
    private static final Logger LOG = LoggerFactory.getLogger(Activation.class);

    private Activation() {}

    /** Sets {@value SluiceSettings#ACTIVE}, and logs one line. */
    public static void announce(
            BiConsumer<String, String> settings, SluiceSettings.Routing routing) {
        settings.accept(SluiceSettings.ACTIVE, Boolean.toString(routing.enabled()));
        LOG.warn(line(version(), routing));
    }

    static String line(String version, SluiceSettings.Routing routing) {
        String sluice = version.isEmpty() ? "Sluice" : "Sluice " + version;
        return routing.enabled()
                ? sluice
                        + " is active: shuffles go through the TaskManagers at "
                        + routing.endpoints()
                        + (routing.fallbackToSpark()
                                ? ", or are Spark's own while none is reachable"
                                : "")
                : sluice
                        + " is not active, because "
                        + SluiceSettings.ENABLED
                        + " is false: shuffles are Spark's own unless a session or a job sets it to"
                        + " true";
    }

    private static String version() {
        String version = Activation.class.getPackage().getImplementationVersion();
        return version == null ? "" : version;
    }
}
