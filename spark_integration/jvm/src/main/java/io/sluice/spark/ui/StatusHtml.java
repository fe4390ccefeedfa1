package io.sluice.spark.ui;

import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.registration.ShuffleTable;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Renders the page as tables in the style of Spark's UI, whose script sorts them. Escapes all text
 * from outside. Links are relative to the page, which may be behind a proxy or in the history
 * server.
 */
final class StatusHtml {
    /** Maximum number of rows in the tables of shuffles and of stages. */
    static final int MAX_ROWS = 200;

    private static final String NANOSECONDS = ", in nanoseconds";

    private final HtmlTables html = new HtmlTables();

    StatusHtml(ApplicationStatus status) {
        html.raw("<div id=\"sluice\">");
        summary(status.last());
        taskManagers(status.last().taskManagers());
        List<SluiceShuffleEvent> shuffles = newest(status.shuffles());
        List<StageRow> stages = newest(status.stages());
        shuffles(shuffles, status.last().registered(), stages);
        stages(stages, status.stages().size(), shuffles);
        counters(status.last());
        settings(status.settings());
        html.raw("</div>");
    }

    private static <T> List<T> newest(List<T> rows) {
        return rows.subList(0, Math.min(rows.size(), MAX_ROWS));
    }

    private void summary(SluiceStatusEvent last) {
        long fallbacks = last.count("fallbackShuffles");
        long local = last.count("localBytesRead");
        long stored = local + last.count("remoteBytesRead");
        long raw = last.count("rawBytesRead");
        html.raw("<ul class=\"list-unstyled\">");
        html.fact(
                "Shuffles",
                Units.count(last.registered() - fallbacks)
                        + " through Sluice, "
                        + Units.count(fallbacks)
                        + " Spark's own");
        html.fact("Written", Units.size(last.count("bytesWritten")));
        html.fact(
                "Read",
                Units.size(stored)
                        + (stored > 0
                                ? ", " + Units.percent(local, stored) + " of it from the same host"
                                : ""));
        if (raw > 0) {
            html.fact(
                    "Stored size",
                    Units.percent(stored, raw) + " of the " + Units.size(raw) + " that were read");
        }
        html.fact(
                "Waited",
                "map tasks "
                        + Units.time(last.count("writerCreditWaitNanos"))
                        + " for credit, reduce tasks "
                        + Units.time(last.count("readerWaitNanos"))
                        + " for data");
        html.raw("</ul>");
    }

    private void taskManagers(List<SluiceStatusEvent.TaskManager> taskManagers) {
        html.begin(
                "TaskManagers (" + taskManagers.size() + ")",
                "sluice-taskmanagers",
                "TaskManager",
                "Address",
                "Reachable from the driver",
                "Map outputs held",
                "Estimated size");
        for (SluiceStatusEvent.TaskManager row : taskManagers) {
            html.beginRow("");
            if (row.id().isEmpty()) {
                html.cell("has never answered");
            } else if (isWebAddress(row.url())) {
                html.link(row.url(), row.id());
            } else {
                html.cell(row.id());
            }
            html.cell(row.address());
            html.cell(
                    row.reachable()
                            ? "yes"
                            : row.failure().isEmpty() ? "not yet" : "no: " + row.failure());
            html.count(row.mapOutputs());
            html.number(row.bytes(), row.bytes() < 0 ? "too many to sum" : Units.size(row.bytes()));
            html.endRow();
        }
        html.end();
    }

    /** In the history server the URL comes from a file, so it may be anything. */
    private static boolean isWebAddress(String url) {
        String lower = url.toLowerCase(Locale.ROOT);
        return lower.startsWith("http://") || lower.startsWith("https://");
    }

    private void shuffles(List<SluiceShuffleEvent> rows, long registered, List<StageRow> stages) {
        Set<Integer> listed = new HashSet<>();
        stages.forEach(stage -> listed.add(stage.stageId()));
        html.begin(
                "Shuffles (" + newestOf(rows.size(), registered) + ")",
                "sluice-shuffles",
                "Shuffle",
                "Map tasks",
                "Partitions",
                "Shuffle service",
                "Policy",
                "Reason",
                "Records",
                "Written",
                "Written by",
                "Released");
        for (SluiceShuffleEvent row : rows) {
            html.beginRow("shuffle-" + row.shuffleId());
            html.cell(Integer.toString(row.shuffleId()));
            html.count(row.maps());
            html.count(row.partitions());
            html.cell(row.policy().isEmpty() ? "Sluice" : "Spark's own");
            html.cell(row.policy());
            html.cell(row.reason());
            html.count(row.records());
            html.size(row.bytes());
            if (row.stageId() == ShuffleTable.Row.NO_STAGE) {
                html.cell("");
            } else if (listed.contains(row.stageId())) {
                html.link("#stage-" + row.stageId(), "stage " + row.stageId(), row.stageId());
            } else {
                html.cell("stage " + row.stageId());
            }
            html.cell(row.released() ? "yes" : "");
            html.endRow();
        }
        html.end();
    }

    private static String newestOf(int shown, long all) {
        return (shown < all ? "the newest " + shown + " of " : "") + Units.count(all);
    }

    private void stages(List<StageRow> rows, int all, List<SluiceShuffleEvent> shuffles) {
        html.begin(
                "Stages (" + newestOf(rows.size(), all) + ")",
                "sluice-stages",
                "Stage",
                "Name",
                "Status",
                "Writes",
                "Written",
                "Time to write",
                "Waiting for credit (part of it)",
                "Read",
                "From the same host",
                "Waiting for data");
        for (StageRow row : rows) {
            // Attempts of a stage follow one another; links lead to the first row.
            html.beginRow("stage-" + row.stageId());
            html.link(
                    "../stages/stage/?id=" + row.stageId() + "&attempt=" + row.attempt(),
                    row.stageId() + (row.attempt() == 0 ? "" : ", attempt " + row.attempt()),
                    row.stageId());
            html.cell(row.name());
            html.cell(row.status());
            shuffles.stream()
                    .filter(shuffle -> shuffle.stageId() == row.stageId())
                    .findFirst()
                    .ifPresentOrElse(
                            shuffle ->
                                    html.link(
                                            "#shuffle-" + shuffle.shuffleId(),
                                            "shuffle " + shuffle.shuffleId(),
                                            shuffle.shuffleId()),
                            () -> html.cell(""));
            html.size(row.bytesWritten());
            html.time(row.writeNanos());
            html.time(row.creditWaitNanos());
            html.size(row.localBytesRead() + row.remoteBytesRead());
            html.size(row.localBytesRead());
            html.time(TimeUnit.MILLISECONDS.toNanos(row.fetchWaitMillis()));
            html.endRow();
        }
        html.end();
    }

    private void counters(SluiceStatusEvent last) {
        html.begin(
                "Counters of driver and executors",
                "sluice-counters",
                "Counter",
                "Value",
                "Meaning");
        SluiceMetrics.INSTANCE
                .meanings()
                .forEach(
                        (name, meaning) -> {
                            html.beginRow("");
                            html.cell(name);
                            if (meaning.endsWith(NANOSECONDS)) {
                                html.time(last.count(name));
                            } else if (name.toLowerCase(Locale.ROOT).contains("bytes")) {
                                html.size(last.count(name));
                            } else {
                                html.count(last.count(name));
                            }
                            html.cell(meaning.replace(NANOSECONDS, ""));
                            html.endRow();
                        });
        html.end();
    }

    private void settings(List<ApplicationStatus.Setting> settings) {
        html.begin("Settings", "sluice-settings", "Setting", "Value", "Set", "Meaning");
        for (ApplicationStatus.Setting setting : settings) {
            html.beginRow("");
            html.cell(setting.key());
            html.cell(setting.value());
            html.cell(setting.isSet() ? "set" : "default");
            html.cell(setting.meaning());
            html.endRow();
        }
        html.end();
    }

    @Override
    public String toString() {
        return html.toString();
    }
}
