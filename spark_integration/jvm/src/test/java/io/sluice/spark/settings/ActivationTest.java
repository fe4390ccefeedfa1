package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;

class ActivationTest {
    @Test
    void theLineNamesVersionAndEndpoints() {
        assertEquals(
                "Sluice 1.2 is active: shuffles go through the TaskManagers at tm:1,tm:2",
                Activation.line("1.2", routing(true, false)));
        assertTrue(
                Activation.line("1.2", routing(true, true))
                        .endsWith(", or are Spark's own while none is reachable"));
    }

    @Test
    void theLineOfADisabledPluginNamesTheSetting() {
        assertTrue(
                Activation.line("1.2", routing(false, false))
                        .startsWith(
                                "Sluice 1.2 is not active, because spark.sluice.enabled is false"));
    }

    @Test
    void aCopiedSettingIsReplaced() {
        Map<String, String> conf = new HashMap<>(Map.of(SluiceSettings.ACTIVE, "true"));
        Activation.announce(conf::put, routing(false, false));
        assertEquals("false", conf.get(SluiceSettings.ACTIVE));
        Activation.announce(conf::put, routing(true, false));
        assertEquals("true", conf.get(SluiceSettings.ACTIVE));
    }

    private static SluiceSettings.Routing routing(boolean enabled, boolean fallbackToSpark) {
        return new SluiceSettings.Routing(enabled, "tm:1,tm:2", 0, fallbackToSpark, 0);
    }
}
