package io.sluice.spark.settings;

import io.sluice.spark.SluiceShuffleDataIO;
import io.sluice.spark.SluiceShuffleManager;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/**
 * The settings of Spark that the plugin changes; it changes no others.
 * docs/reference/spark-settings.md has the same table (a test compares them).
 */
public final class ChangedSettings {
    public static final String SHUFFLE_MANAGER = "spark.shuffle.manager";
    public static final String DATA_IO = "spark.shuffle.sort.io.plugin.class";

    /** A name instead of the class, which only Spark 4.3 can load. */
    static final String STREAMING_MANAGER = "io.sluice.spark.SluiceStreamingShuffleManager";

    /**
     * The mode of an application, on which the changes depend.
     *
     * @param enabled {@code spark.sluice.enabled} of the application
     * @param pipelined {@code spark.sluice.pipelined.enabled}
     * @param localMaster whether tasks run in the driver's process
     */
    public record Mode(boolean enabled, boolean pipelined, boolean localMaster) {}

    /**
     * A setting that the plugin changes.
     *
     * @param instead the only other value that the user may have set; if empty, the user may have
     *     set any value, and it stays
     * @param when the condition in words
     * @param condition whether the plugin changes the setting
     */
    record Change(
            String key,
            String value,
            String instead,
            String when,
            Predicate<Mode> condition,
            String why) {

        private boolean isOnlyDefault() {
            return instead.isEmpty();
        }
    }

    static final List<Change> ALL =
            List.of(
                    new Change(
                            SHUFFLE_MANAGER,
                            SluiceShuffleManager.class.getName(),
                            "sort",
                            "always: a session may turn Sluice on later",
                            mode -> true,
                            "decides for each shuffle, and leaves it to Spark's `sort` if Sluice is"
                                    + " off for it"),
                    new Change(
                            DATA_IO,
                            SluiceShuffleDataIO.class.getName(),
                            "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
                            "always: a session may turn Sluice on later",
                            mode -> true,
                            "releases shuffles at TaskManagers; what is left to Spark goes to its"
                                    + " own class"),
                    new Change(
                            "spark.shuffle.manager.incremental",
                            STREAMING_MANAGER,
                            "streaming",
                            "`spark.sluice.pipelined.enabled` is true",
                            Mode::pipelined,
                            "sends pipelined shuffles through TaskManagers"),
                    new Change(
                            "spark.locality.wait",
                            "0s",
                            "",
                            "`spark.sluice.enabled` is true, in `local` mode, unless you have set"
                                    + " it",
                            mode -> mode.enabled() && mode.localMaster(),
                            "nothing offers the one executor again when the wait is over"));

    private ChangedSettings() {}

    /**
     * Returns the settings to change in an application.
     *
     * @param setting returns the application's setting of a key, or null
     * @throws IllegalArgumentException the application has another value for one of them
     */
    public static Map<String, String> in(UnaryOperator<String> setting, Mode mode) {
        Map<String, String> changes = new LinkedHashMap<>();
        for (Change change : ALL) {
            if (!change.condition().test(mode)) {
                continue;
            }
            String value = setting.apply(change.key());
            if (change.isOnlyDefault()) {
                changes.put(change.key(), value == null ? change.value() : value);
                continue;
            }
            if (value != null && !value.equals(change.value()) && !value.equals(change.instead())) {
                throw new IllegalArgumentException(
                        change.key()
                                + " is "
                                + value
                                + ": with Sluice it must be "
                                + change.value()
                                + "; remove the setting or the plugin");
            }
            changes.put(change.key(), change.value());
        }
        return changes;
    }
}
