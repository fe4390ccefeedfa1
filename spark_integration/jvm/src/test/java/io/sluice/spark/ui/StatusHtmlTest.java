package io.sluice.spark.ui;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.spark.ui.SluiceStatusEvent.TaskManager;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Checks the content of the page, and that no text from outside becomes HTML. */
class StatusHtmlTest {
    private static final String EVIL = "<script>alert(\"x\")</script>&'";

    private static String page(
            List<TaskManager> taskManagers,
            List<SluiceShuffleEvent> shuffles,
            List<StageRow> stages) {
        Map<String, Long> counters =
                Map.of(
                        "fallbackShuffles", 1L,
                        "bytesWritten", 3L << 30,
                        "localBytesRead", 30L,
                        "remoteBytesRead", 10L,
                        "rawBytesRead", 80L,
                        "mapOutputsCommitted", 1234L,
                        "readerWaitNanos", 90_000_000_000L);
        return new StatusHtml(
                        new ApplicationStatus(
                                new SluiceStatusEvent(taskManagers, 300, counters, Map.of()),
                                shuffles,
                                stages,
                                List.of(
                                        new ApplicationStatus.Setting(
                                                "spark.sluice.endpoints", EVIL, true, "where"))))
                .toString();
    }

    private static SluiceShuffleEvent shuffle(int shuffleId, int stageId) {
        return new SluiceShuffleEvent(shuffleId, 1, 1, "", "", stageId, 0, 0, false);
    }

    private static StageRow stage(int stageId, int attempt) {
        return new StageRow(
                stageId,
                attempt,
                EVIL,
                "complete",
                5 << 20,
                2_000_000_000L,
                1_500_000_000L,
                1 << 10,
                1 << 10,
                250);
    }

    @Test
    void everyTextIsEscaped() {
        TaskManager one = new TaskManager(EVIL, EVIL, "http://h/" + EVIL, false, EVIL, 2, 2048);
        TaskManager other = new TaskManager(EVIL, EVIL, "", true, "", 2, -1);
        String page =
                page(
                        List.of(one, other),
                        List.of(new SluiceShuffleEvent(7, 1, 2, EVIL, EVIL, 3, 3, 4, true)),
                        List.of(stage(3, 0)));
        assertFalse(page.contains("<script"), page);
        assertFalse(page.contains("alert(\""), page);
        assertTrue(
                page.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;"), page);
        assertTrue(
                page.contains(
                        "<td class=\"text-nowrap\" sorttable_customkey=\"2048\">2.0 KiB</td>"),
                page);
        assertTrue(page.contains(">too many to sum</td>"), page);
    }

    @Test
    void anAddressFromAnEventLogIsALinkOnlyIfItIsOfTheWeb() {
        String page =
                page(
                        List.of(
                                new TaskManager("a", "a", "javascript:alert(1)", true, "", 0, 0),
                                new TaskManager("b", "b", "HTTPS://b/", true, "", 0, 0)),
                        List.of(),
                        List.of());
        assertFalse(page.contains("javascript"), page);
        assertTrue(page.contains("<td>a</td>"), page);
        assertTrue(page.contains("<a href=\"HTTPS://b/\">b</a>"), page);
    }

    @Test
    void theSummaryAddsUp() {
        String page = page(List.of(), List.of(), List.of());
        assertTrue(page.contains("299 through Sluice, 1 Spark&#39;s own"), page);
        assertTrue(page.contains("40 B, 75 % of it from the same host"), page);
        assertTrue(page.contains("50 % of the 80 B that were read"), page);
        assertTrue(page.contains("3.0 GiB"), page);
        assertTrue(page.contains("map tasks 0 s for credit, reduce tasks 1 min 30 s"), page);
    }

    @Test
    void countersHaveUnits() {
        String page = page(List.of(), List.of(), List.of());
        assertTrue(
                page.contains(
                        "<td>bytesWritten</td><td class=\"text-nowrap\""
                                + " sorttable_customkey=\"3221225472\">3.0 GiB"),
                page);
        assertTrue(
                page.contains(
                        "<td>mapOutputsCommitted</td><td class=\"text-nowrap\""
                                + " sorttable_customkey=\"1234\">1,234"),
                page);
        assertTrue(page.contains(">1 min 30 s</td><td>time reduce tasks waited for data<"), page);
    }

    @Test
    void stagesAndShufflesLinkToOneAnother() {
        String page = page(List.of(), List.of(shuffle(7, 3), shuffle(6, 1)), List.of(stage(3, 1)));
        assertTrue(page.contains("<tr id=\"shuffle-7\">"), page);
        assertTrue(page.contains("<a href=\"#stage-3\">stage 3</a>"), page);
        assertTrue(page.contains("<tr id=\"stage-3\">"), page);
        assertTrue(page.contains("<a href=\"#shuffle-7\">shuffle 7</a>"), page);
        assertTrue(
                page.contains("<a href=\"../stages/stage/?id=3&amp;attempt=1\">3, attempt 1</a>"),
                page);
        // Spark's store has forgotten this stage.
        assertTrue(page.contains("<td>stage 1</td>"), page);
    }

    @Test
    void theTableOfShufflesIsBounded() {
        List<SluiceShuffleEvent> rows = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            rows.add(shuffle(i, -1));
        }
        String page = page(List.of(), rows, List.of());
        assertTrue(page.contains("Shuffles (the newest 200 of 300)"), page);
        assertEquals(200, page.split("<td>Sluice</td>", -1).length - 1);
    }
}
