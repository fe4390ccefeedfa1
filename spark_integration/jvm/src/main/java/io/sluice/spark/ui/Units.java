package io.sluice.spark.ui;

import java.util.Locale;
import java.util.concurrent.TimeUnit;

/** Formats numbers for readers. */
final class Units {
    private static final String[] SIZES = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

    private Units() {}

    /** Formats a number of bytes in the largest unit that leaves at least one. */
    static String size(long bytes) {
        double value = bytes;
        int unit = 0;
        while (value >= 1024 && unit < SIZES.length - 1) {
            value /= 1024;
            unit++;
        }
        return unit == 0 ? bytes + " B" : String.format(Locale.ROOT, "%.1f %s", value, SIZES[unit]);
    }

    /** Formats a time in the two largest units, or in one below a minute. */
    static String time(long nanos) {
        long seconds = TimeUnit.NANOSECONDS.toSeconds(nanos);
        if (nanos == 0) {
            return "0 s";
        }
        if (nanos < 1_000_000) {
            return "< 1 ms";
        }
        if (seconds < 1) {
            return TimeUnit.NANOSECONDS.toMillis(nanos) + " ms";
        }
        if (seconds < 60) {
            return String.format(Locale.ROOT, "%d.%d s", seconds, nanos / 100_000_000 % 10);
        }
        if (seconds < 3600) {
            return String.format(Locale.ROOT, "%d min %d s", seconds / 60, seconds % 60);
        }
        return String.format(Locale.ROOT, "%d h %d min", seconds / 3600, seconds / 60 % 60);
    }

    /** Formats a number with a comma between thousands. */
    static String count(long number) {
        return String.format(Locale.ROOT, "%,d", number);
    }

    /** Formats a share, below a tenth with one digit behind the point. */
    static String percent(long part, long whole) {
        double percent = 100.0 * part / whole;
        return String.format(Locale.ROOT, percent < 10 ? "%.1f %%" : "%.0f %%", percent);
    }
}
