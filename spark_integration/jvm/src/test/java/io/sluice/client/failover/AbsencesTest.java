package io.sluice.client.failover;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class AbsencesTest {
    private long now;
    private final Absences absences = new Absences(() -> now);

    @ParameterizedTest
    @ValueSource(longs = {0, 1_000_000_000, Long.MAX_VALUE - 5})
    void aTaskManagerIsAbsentForAWhile(long start) {
        now = start;
        absences.add("a");
        assertTrue(absences.has("a"));
        assertFalse(absences.has("b"));
        now += Absences.REMEMBERED_NANOS - 1;
        assertTrue(absences.has("a"));
        now += 1;
        assertFalse(absences.has("a"));
    }

    @Test
    void anotherFailureLengthensTheWhile() {
        absences.add("a");
        now += Absences.REMEMBERED_NANOS - 1;
        absences.add("a");
        now += Absences.REMEMBERED_NANOS - 1;
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
