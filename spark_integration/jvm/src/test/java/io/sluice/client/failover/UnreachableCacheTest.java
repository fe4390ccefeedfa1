package io.sluice.client.failover;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class UnreachableCacheTest {
    private long now;
    private final UnreachableCache absences = new UnreachableCache(() -> now);

    @ParameterizedTest
    @ValueSource(longs = {0, 1_000_000_000, Long.MAX_VALUE - 5})
    void aTaskManagerIsAbsentForAWhile(long start) {
        now = start;
        absences.add("a");
        assertTrue(absences.has("a"));
        assertFalse(absences.has("b"));
        now += UnreachableCache.REMEMBERED_NANOS - 1;
        assertTrue(absences.has("a"));
        now += 1;
        assertFalse(absences.has("a"));
    }

    @Test
    void anotherFailureLengthensTheWhile() {
        absences.add("a");
        now += UnreachableCache.REMEMBERED_NANOS - 1;
        absences.add("a");
        now += UnreachableCache.REMEMBERED_NANOS - 1;
        assertTrue(absences.has("a"));
    }

    @Test
    void oneThatAnswersIsNotAbsent() {
        absences.add("a");
        absences.add("b");
        absences.remove("a");
        assertFalse(absences.has("a"));
        assertTrue(absences.has("b"));
    }
}
