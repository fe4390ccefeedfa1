package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.spark.SluicePlugin;
import io.sluice.spark.SluiceShuffleDataIO;
import io.sluice.spark.SluiceShuffleManager;
import io.sluice.spark.settings.ChangedSettings.Mode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

class ChangedSettingsTest {
    private static final Mode ON = new Mode(true, false, false);
    private static final String MANAGER = ChangedSettings.SHUFFLE_MANAGER;

    private static Set<String> changedIn(Mode mode) {
        return ChangedSettings.in(key -> null, mode).keySet();
    }

    @Test
    void onlySettingsThatTheModeNeedsAreChanged() {
        Set<String> always = Set.of(MANAGER, ChangedSettings.DATA_IO);
        assertEquals(always, changedIn(ON));
        assertEquals(always, changedIn(new Mode(false, false, true)));
        Set<String> all = new HashSet<>(always);
        all.add("spark.locality.wait");
        all.add("spark.shuffle.manager.incremental");
        assertEquals(all, changedIn(new Mode(true, true, true)));
    }

    @Test
    void theNamesAreThoseOfTheClasses() {
        assertEquals(SluicePlugin.class.getName(), ChangedSettings.PLUGIN);
        assertEquals(SluiceShuffleManager.class.getName(), ChangedSettings.MANAGER_CLASS);
        assertEquals(SluiceShuffleDataIO.class.getName(), ChangedSettings.DATA_IO_CLASS);
    }

    @Test
    void sparksDefaultIsReplaced() {
        Map<String, String> set = Map.of(MANAGER, "sort");
        assertEquals(
                SluiceShuffleManager.class.getName(),
                ChangedSettings.in(set::get, ON).get(MANAGER));
    }

    @Test
    void anotherShuffleManagerIsRefusedWithTheRemedy() {
        Map<String, String> set = Map.of(MANAGER, "org.example.Manager");
        String message =
                assertThrows(IllegalArgumentException.class, () -> ChangedSettings.in(set::get, ON))
                        .getMessage();
        assertTrue(message.startsWith(MANAGER + " is org.example.Manager"), message);
        assertTrue(message.endsWith("remove the setting or the plugin"), message);
    }

    @Test
    void aWaitThatTheUserHasSetStays() {
        Map<String, String> set = Map.of("spark.locality.wait", "7s");
        Map<String, String> changes = ChangedSettings.in(set::get, new Mode(true, false, true));
        assertEquals("7s", changes.get("spark.locality.wait"));
    }

    @Test
    void thePageListsTheChanges() throws IOException {
        List<String> wanted =
                new ArrayList<>(
                        List.of("| setting | changed to | when | why |", "|---|---|---|---|"));
        for (ChangedSettings.Change change : ChangedSettings.ALL) {
            wanted.add(
                    "| `%s` | `%s` | %s | %s |"
                            .formatted(change.key(), change.value(), change.when(), change.why()));
        }
        wanted.add("");
        List<String> page = Files.readAllLines(Path.of(System.getProperty("sluice.settings.page")));
        int start = page.indexOf(wanted.get(0));
        assertEquals(wanted, page.subList(start, start + wanted.size()));
    }
}
