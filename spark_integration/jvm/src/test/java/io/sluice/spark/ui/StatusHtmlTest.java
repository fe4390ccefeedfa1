package io.sluice.spark.ui;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.registration.ShuffleTable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Checks the content of the page, and that no text from outside becomes HTML. */
class StatusHtmlTest {
    private static final String EVIL = "<script>alert(\"x\")</script>&'";

    private static String page(
            List<ApplicationStatus.TaskManager> taskManagers, List<ShuffleTable.Row> shuffles) {
        Map<String, Long> counters = SluiceMetrics.INSTANCE.snapshot();
        counters.replaceAll((name, value) -> 0L);
        counters.put("fallbackShuffles", 1L);
        counters.put("bytesWritten", 3L << 30);
        counters.put("localBytesRead", 30L);
        counters.put("remoteBytesRead", 10L);
        counters.put("rawBytesRead", 80L);
        return new StatusHtml(
                        new ApplicationStatus(
                                taskManagers,
                                300,
                                shuffles,
                                counters,
                                List.of(
                                        new ApplicationStatus.Setting(
                                                "spark.sluice.endpoints", EVIL, true, "where"))))
                .toString();
    }

    @Test
    void everyTextIsEscaped() {
        ApplicationStatus.TaskManager one =
                new ApplicationStatus.TaskManager(
                        EVIL, EVIL, "http://h/" + EVIL, false, EVIL, 2, 2048);
        ApplicationStatus.TaskManager other =
                new ApplicationStatus.TaskManager(EVIL, EVIL, "", true, "", 2, -1);
        String page =
                page(
                        List.of(one, other),
                        List.of(
                                new ShuffleTable.Row(
                                        7,
                                        1,
                                        2,
                                        new ShuffleTable.Decision(EVIL, EVIL),
                                        3,
                                        4,
                                        true)));
        assertFalse(page.contains("<script"), page);
        assertFalse(page.contains("alert(\""), page);
        assertTrue(
                page.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;"), page);
        assertTrue(page.contains("<td>2.0 KiB</td>"), page);
        assertTrue(page.contains("<td>too many to sum</td>"), page);
    }

    @Test
    void theSummaryAddsUp() {
        String page = page(List.of(), List.of());
        assertTrue(page.contains("299 through Sluice, 1 Spark&#39;s own"), page);
        assertTrue(page.contains("40 B, 75 % of it from the same host"), page);
        assertTrue(page.contains("50 % of the 80 B that were read"), page);
        assertTrue(page.contains("3.0 GiB"), page);
    }

    @Test
    void theTableOfShufflesIsBounded() {
        List<ShuffleTable.Row> rows = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            rows.add(new ShuffleTable.Row(i, 1, 1, new ShuffleTable.Decision("", ""), 0, 0, false));
        }
        String page = page(List.of(), rows);
        assertTrue(page.contains("Shuffles (the newest 200 of 300)"), page);
        assertEquals(200, page.split("<td>Sluice</td>", -1).length - 1);
    }

    @Test
    void sizesHaveOneDigitBehindThePoint() {
        assertEquals("0 B", StatusHtml.size(0));
        assertEquals("1023 B", StatusHtml.size(1023));
        assertEquals("1.0 KiB", StatusHtml.size(1024));
        assertEquals("8.0 EiB", StatusHtml.size(Long.MAX_VALUE));
    }
}
