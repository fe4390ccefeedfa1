package io.sluice.spark.ui;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

/** Checks how numbers are shown. */
class UnitsTest {
    @Test
    void sizesHaveOneDigitBehindThePoint() {
        assertEquals("0 B", Units.size(0));
        assertEquals("1023 B", Units.size(1023));
        assertEquals("1.0 KiB", Units.size(1024));
        assertEquals("8.0 EiB", Units.size(Long.MAX_VALUE));
    }

    @Test
    void timesHaveUnitsOfTheirSize() {
        assertEquals("0 s", Units.time(0));
        assertEquals("< 1 ms", Units.time(999_999));
        assertEquals("1 ms", Units.time(1_000_000));
        assertEquals("999 ms", Units.time(999_999_999));
        assertEquals("1.0 s", Units.time(1_000_000_000));
        assertEquals("59.9 s", Units.time(59_999_999_999L));
        assertEquals("1 min 0 s", Units.time(60_000_000_000L));
        assertEquals("2 h 5 min", Units.time((2 * 3600 + 5 * 60 + 7) * 1_000_000_000L));
    }

    @Test
    void smallSharesHaveADigitBehindThePoint() {
        assertEquals("0.5 %", Units.percent(5, 1000));
        assertEquals("75 %", Units.percent(3, 4));
    }

    @Test
    void countsHaveCommas() {
        assertEquals("999", Units.count(999));
        assertEquals("1,234,567", Units.count(1_234_567));
    }
}
