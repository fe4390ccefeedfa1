package io.sluice.spark.ui;

import io.sluice.spark.settings.SluiceSettings;
import java.util.List;
import java.util.function.UnaryOperator;

/**
 * What the page shows: the state of a running application, or the recorded one of an earlier.
 *
 * @param shuffles the newest shuffles, the newest first
 * @param stages stages that write or read shuffles, the newest first
 */
record ApplicationStatus(
        SluiceStatusEvent last,
        List<SluiceShuffleEvent> shuffles,
        List<StageRow> stages,
        List<Setting> settings) {

    /** A setting, and whether the user has set it. */
    record Setting(String key, String value, boolean isSet, String meaning) {}

    /**
     * Returns all settings of Sluice.
     *
     * @param value returns the value of a setting as the page may show it; null for the default
     */
    static List<Setting> settings(UnaryOperator<String> value) {
        return SluiceSettings.ENTRIES.stream()
                .map(
                        entry -> {
                            String given = value.apply(entry.key());
                            return new Setting(
                                    entry.key(),
                                    given == null ? entry.defaultValue() : given,
                                    given != null,
                                    entry.meaning());
                        })
                .toList();
    }
}
