package io.sluice.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.apache.spark.SparkConf;
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
        SparkConf conf = new SparkConf(false).set(SluiceSettings.ACTIVE, "true");
        conf.set(SluiceSettings.ENABLED, "false");
        Activation.announce(conf, SluiceSettings.of(conf));
        assertEquals("false", conf.get(SluiceSettings.ACTIVE));
        conf.set(SluiceSettings.ENABLED, "true");
        Activation.announce(conf, SluiceSettings.of(conf));
        assertEquals("true", conf.get(SluiceSettings.ACTIVE));
    }

    private static SluiceSettings.Routing routing(boolean enabled, boolean fallbackToSpark) {
        return new SluiceSettings.Routing(enabled, "tm:1,tm:2", fallbackToSpark, 0);
    }
}
