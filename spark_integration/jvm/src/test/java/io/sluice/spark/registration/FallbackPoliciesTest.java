package io.sluice.spark.registration;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.settings.SluiceSettings;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import org.junit.jupiter.api.Test;

/** Checks which shuffles go through Sluice, by which policy, and what is recorded. */
class FallbackPoliciesTest {
    private boolean enabled = true;
    private long belowBytes;
    private final Map<String, String> caller = new HashMap<>();
    private final ShuffleTable table = new ShuffleTable();
    private Optional<String> noTaskManager = Optional.empty();
    private Optional<String> unsupported = Optional.empty();
    private OptionalLong inputBytes = OptionalLong.empty();
    private int sizesAsked;
    private int nextShuffle;

    private boolean useSluice() {
        return useSluice(registrar());
    }

    private ShuffleRegistrar registrar() {
        return new ShuffleRegistrar(
                FallbackPolicies.of(enabled, belowBytes, Long::parseLong, s -> noTaskManager),
                table);
    }

    private boolean useSluice(ShuffleRegistrar registrar) {
        NewShuffle shuffle =
                new NewShuffle(
                        nextShuffle++,
                        3,
                        5,
                        key -> Optional.ofNullable(caller.get(key)),
                        unsupported,
                        () -> {
                            sizesAsked++;
                            return inputBytes;
                        });
        return registrar.useSluice(shuffle);
    }

    private ShuffleTable.Row last() {
        return table.newest().get(0);
    }

    private static Map<String, Long> counters() {
        return SluiceMetrics.INSTANCE.snapshot();
    }

    @Test
    void nothingFallsBackByDefaultAndNoSizeIsAskedFor() {
        inputBytes = OptionalLong.of(0);
        assertTrue(useSluice());
        assertEquals(0, sizesAsked);
        assertEquals("", last().decision().policy());
        assertEquals(3, last().maps());
        assertEquals(5, last().partitions());
    }

    @Test
    void theRegistrarKnowsWhichShufflesGoThroughSluice() {
        ShuffleRegistrar registrar = registrar();
        caller.put(SluiceSettings.ENABLED, "false");
        useSluice(registrar);
        assertFalse(registrar.hasUsedSluice());
        caller.clear();
        useSluice(registrar);
        assertTrue(registrar.hasUsedSluice());
        assertFalse(registrar.goesThroughSluice(0));
        assertTrue(registrar.goesThroughSluice(1));
        assertFalse(registrar.goesThroughSluice(2));
    }

    @Test
    void theFirstPolicyWithAReasonDecides() {
        belowBytes = 1024;
        inputBytes = OptionalLong.of(1023);
        noTaskManager = Optional.of("nobody");
        unsupported = Optional.of("strange");
        caller.put(SluiceSettings.ENABLED, "false");
        Map<String, Long> before = counters();
        assertFalse(useSluice());
        assertEquals(FallbackPolicies.DISABLED, last().decision().policy());
        assertEquals(
                "spark.sluice.enabled=false for this query or job", last().decision().reason());
        caller.clear();
        assertFalse(useSluice());
        assertEquals(FallbackPolicies.UNSUPPORTED, last().decision().policy());
        unsupported = Optional.empty();
        assertFalse(useSluice());
        assertEquals(FallbackPolicies.TOO_SMALL, last().decision().policy());
        inputBytes = OptionalLong.of(1024);
        assertFalse(useSluice());
        assertEquals(FallbackPolicies.NO_TASK_MANAGER, last().decision().policy());
        assertEquals("nobody", last().decision().reason());
        noTaskManager = Optional.empty();
        assertTrue(useSluice());
        Map<String, Long> after = counters();
        assertEquals(4, after.get("fallbackShuffles") - before.get("fallbackShuffles"));
        for (String one :
                new String[] {
                    "fallbackDisabled",
                    "fallbackUnsupported",
                    "fallbackTooSmall",
                    "fallbackNoTaskManager"
                }) {
            assertEquals(1, after.get(one) - before.get(one), one);
        }
        assertEquals(5, table.registered());
    }

    @Test
    void anUnknownSizeIsNotSmall() {
        belowBytes = 1L << 40;
        assertTrue(useSluice());
        assertEquals(1, sizesAsked);
    }

    @Test
    void aQueryTurnsOnWhatTheApplicationTurnsOff() {
        enabled = false;
        assertFalse(useSluice());
        assertEquals("spark.sluice.enabled=false for the application", last().decision().reason());
        caller.put(SluiceSettings.ENABLED, " TRUE ");
        assertTrue(useSluice());
    }

    @Test
    void aWrongSettingOfTheCallerIsReported() {
        caller.put(SluiceSettings.ENABLED, "maybe");
        String message = assertThrows(IllegalArgumentException.class, this::useSluice).getMessage();
        assertEquals(
                "spark.sluice.enabled is 'maybe' in the session or the thread that registers"
                        + " shuffle 0: must be true or false",
                message);
        caller.clear();
        for (String wrong : new String[] {"small", "-1"}) {
            caller.put(SluiceSettings.FALLBACK_BELOW, wrong);
            message = assertThrows(IllegalArgumentException.class, this::useSluice).getMessage();
            assertTrue(
                    message.startsWith("spark.sluice.fallback.belowSize is '" + wrong + "'"),
                    message);
        }
    }

    @Test
    void theTableKeepsTheNewest() {
        for (int i = 0; i < ShuffleTable.MAX_SHUFFLES + 10; i++) {
            useSluice();
        }
        assertEquals(ShuffleTable.MAX_SHUFFLES, table.newest().size());
        assertEquals(ShuffleTable.MAX_SHUFFLES + 10, table.registered());
        assertEquals(ShuffleTable.MAX_SHUFFLES + 9, last().shuffleId());
        table.written(last().shuffleId(), 7, 100);
        table.written(last().shuffleId(), 1, 10);
        table.released(last().shuffleId());
        table.written(0, 1, 1);
        assertEquals(8, last().records());
        assertEquals(110, last().bytes());
        assertTrue(last().released());
    }
}
