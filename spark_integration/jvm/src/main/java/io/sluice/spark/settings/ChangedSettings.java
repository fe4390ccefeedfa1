package io.sluice.spark.settings;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/**
 * The settings of Spark that the plugin changes. A test compares them with
 * docs/reference/spark-settings.md.
 */
public final class ChangedSettings {
    public static final String SHUFFLE_MANAGER = "spark.shuffle.manager";
    public static final String DATA_IO = "spark.shuffle.sort.io.plugin.class";

    /** The classes that Spark loads by name. A test compares them with the classes. */
    public static final String PLUGIN = "io.sluice.spark.SluicePlugin";

    public static final String MANAGER_CLASS = "io.sluice.spark.SluiceShuffleManager";
    public static final String DATA_IO_CLASS = "io.sluice.spark.SluiceShuffleDataIO";
    static final String STREAMING_MANAGER_CLASS = "io.sluice.spark.SluiceStreamingShuffleManager";

    /**
     * The mode of an application.
     *
     * @param enabled {@code spark.sluice.enabled} of the application
     * @param pipelined {@code spark.sluice.pipelined.enabled}
     * @param localMaster whether tasks run in the driver's process
     */
    public record Mode(boolean enabled, boolean pipelined, boolean localMaster) {}

    /**
     * A setting that the plugin changes.
     *
     * @param instead the only other value that is allowed; if empty, a value of the user stays
     * @param when the condition in words
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
                            MANAGER_CLASS,
                            "sort",
                            "always: a session may turn Sluice on later",
                            mode -> true,
                            "decides for each shuffle, and leaves it to Spark's `sort` if Sluice is"
                                    + " off for it"),
                    new Change(
                            DATA_IO,
                            DATA_IO_CLASS,
                            "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
                            "always: a session may turn Sluice on later",
                            mode -> true,
                            "releases shuffles at TaskManagers; what is left to Spark goes to its"
                                    + " own class"),
                    new Change(
                            "spark.shuffle.manager.incremental",
                            STREAMING_MANAGER_CLASS,
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
                        String.format(
                                "%s is %s: with Sluice it must be %s; remove the setting or the"
                                        + " plugin",
                                change.key(), value, change.value()));
            }
            changes.put(change.key(), change.value());
        }
        return changes;
    }
}
