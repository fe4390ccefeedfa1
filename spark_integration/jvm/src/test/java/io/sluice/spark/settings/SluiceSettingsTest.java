package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Checks that docs/reference/spark-settings.md lists exactly the settings of the plugin. */
class SluiceSettingsTest {
    @Test
    void thePageListsTheSettings() throws IOException {
        List<String> wanted =
                SluiceSettings.ENTRIES.stream()
                        .map(
                                e ->
                                        "| `%s` | `%s` | %s | %s |"
                                                .formatted(
                                                        e.key(),
                                                        e.defaultValue(),
                                                        e.form(),
                                                        e.meaning()))
                        .toList();
        List<String> written =
                Files.readAllLines(Path.of(System.getProperty("sluice.settings.page"))).stream()
                        .filter(line -> line.startsWith("| `spark.sluice."))
                        .toList();
        assertEquals(wanted, written);
    }
}
