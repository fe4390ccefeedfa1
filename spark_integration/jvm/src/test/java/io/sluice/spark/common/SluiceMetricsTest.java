package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Checks that docs/reference/metrics.md lists exactly the metrics of the plugin. */
class SluiceMetricsTest {
    @Test
    void anotherApplicationCountsFromZero() {
        SluiceMetrics metrics = new SluiceMetrics();
        metrics.bytesWritten.add(5);
        metrics.reset();
        assertEquals(Set.of(0L), Set.copyOf(metrics.snapshot().values()), "values of all counters");
    }

    @Test
    void thePageListsTheMetrics() throws IOException {
        List<String> wanted = new ArrayList<>(List.of("| metric | meaning |", "|---|---|"));
        SluiceMetrics.INSTANCE
                .meanings()
                .forEach((name, meaning) -> wanted.add("| `" + name + "` | " + meaning + " |"));
        wanted.add("");
        List<String> page = Files.readAllLines(Path.of(System.getProperty("sluice.metrics.page")));
        int start = page.indexOf(wanted.get(0));
        assertEquals(wanted, page.subList(start, start + wanted.size()));
    }
}
