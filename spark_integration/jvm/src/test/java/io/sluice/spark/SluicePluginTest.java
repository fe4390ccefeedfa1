package io.sluice.spark;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class SluicePluginTest {
    @Test
    void aSparkThatIsTooOldIsNamedWithTheRemedy() {
        for (String version : new String[] {"3.4.4", "2.4.8"}) {
            String message =
                    assertThrows(
                                    IllegalStateException.class,
                                    () -> SluicePlugin.requireSupported(version))
                            .getMessage();
            assertTrue(message.startsWith("Spark " + version + " is not supported"), message);
            assertTrue(message.contains("3.5 to 4.3"), message);
        }
        for (String version : new String[] {"3.5.0", "4.0.0-preview2", "4.3.0"}) {
            SluicePlugin.requireSupported(version);
        }
    }
}
