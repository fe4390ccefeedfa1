package io.sluice.spark.ui;

import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.registration.ShuffleTable;
import java.util.Locale;
import java.util.Map;

/** Renders the page as tables in the style of Spark's UI. Escapes all text from outside. */
final class StatusHtml {
    /** Maximum number of rows in the table of shuffles. */
    static final int MAX_SHUFFLES = 200;

    private static final String[] UNITS = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

    private final StringBuilder html = new StringBuilder(16 * 1024);

    StatusHtml(ApplicationStatus status) {
        html.append("<div id=\"sluice\">");
        summary(status);
        taskManagers(status);
        shuffles(status);
        counters(status);
        settings(status);
        html.append("</div>");
    }

    private void summary(ApplicationStatus status) {
        Map<String, Long> counters = status.counters();
        long fallbacks = counters.get("fallbackShuffles");
        long stored = counters.get("localBytesRead") + counters.get("remoteBytesRead");
        long raw = counters.get("rawBytesRead");
        html.append("<ul class=\"list-unstyled\">");
        fact(
                "Shuffles",
                (status.registered() - fallbacks)
                        + " through Sluice, "
                        + fallbacks
                        + " Spark's own");
        fact("Written", size(counters.get("bytesWritten")));
        fact(
                "Read",
                size(stored)
                        + (stored > 0
                                ? ", "
                                        + percent(counters.get("localBytesRead"), stored)
                                        + " of it from the same host"
                                : ""));
        if (raw > 0) {
            fact("Stored size", percent(stored, raw) + " of the " + size(raw) + " that were read");
        }
        html.append("</ul>");
    }

    private void fact(String name, String value) {
        html.append("<li><strong>")
                .append(escaped(name))
                .append(":</strong> ")
                .append(escaped(value))
                .append("</li>");
    }

    private void taskManagers(ApplicationStatus status) {
        begin(
                "TaskManagers (" + status.taskManagers().size() + ")",
                "sluice-taskmanagers",
                "TaskManager",
                "Address",
                "Reachable from the driver",
                "Map outputs held",
                "About");
        for (ApplicationStatus.TaskManager row : status.taskManagers()) {
            html.append("<tr>");
            if (row.url().isEmpty()) {
                cell(row.id().isEmpty() ? "has never answered" : row.id());
            } else {
                html.append("<td><a href=\"").append(escaped(row.url())).append("\">");
                html.append(escaped(row.id())).append("</a></td>");
            }
            cell(row.address());
            cell(
                    row.reachable()
                            ? "yes"
                            : row.failure().isEmpty() ? "not yet" : "no: " + row.failure());
            cell(Long.toString(row.mapOutputs()));
            cell(row.bytes() < 0 ? "too many to sum" : size(row.bytes()));
            html.append("</tr>");
        }
        end();
    }

    private void shuffles(ApplicationStatus status) {
        int shown = Math.min(status.shuffles().size(), MAX_SHUFFLES);
        begin(
                "Shuffles ("
                        + (shown < status.registered() ? "the newest " + shown + " of " : "")
                        + status.registered()
                        + ")",
                "sluice-shuffles",
                "Shuffle",
                "Map tasks",
                "Partitions",
                "Goes through",
                "Policy",
                "Reason",
                "Records",
                "Written",
                "Released");
        for (ShuffleTable.Row row : status.shuffles().subList(0, shown)) {
            html.append("<tr>");
            cell(Integer.toString(row.shuffleId()));
            cell(Integer.toString(row.maps()));
            cell(Integer.toString(row.partitions()));
            cell(row.decision().policy().isEmpty() ? "Sluice" : "Spark's own");
            cell(row.decision().policy());
            cell(row.decision().reason());
            cell(Long.toString(row.records()));
            cell(size(row.bytes()));
            cell(row.released() ? "yes" : "");
            html.append("</tr>");
        }
        end();
    }

    private void counters(ApplicationStatus status) {
        begin("Counters of driver and executors", "sluice-counters", "Counter", "Value", "Meaning");
        Map<String, String> meanings = SluiceMetrics.INSTANCE.meanings();
        status.counters()
                .forEach(
                        (name, value) -> {
                            html.append("<tr>");
                            cell(name);
                            cell(Long.toString(value));
                            cell(meanings.getOrDefault(name, ""));
                            html.append("</tr>");
                        });
        end();
    }

    private void settings(ApplicationStatus status) {
        begin("Settings", "sluice-settings", "Setting", "Value", "", "Meaning");
        for (ApplicationStatus.Setting setting : status.settings()) {
            html.append("<tr>");
            cell(setting.key());
            cell(setting.value());
            cell(setting.isSet() ? "set" : "default");
            cell(setting.meaning());
            html.append("</tr>");
        }
        end();
    }

    private void begin(String title, String id, String... columns) {
        html.append("<h4>").append(escaped(title)).append("</h4><table id=\"").append(id);
        html.append("\" class=\"table table-bordered table-sm table-striped\"><thead><tr>");
        for (String column : columns) {
            html.append("<th>").append(escaped(column)).append("</th>");
        }
        html.append("</tr></thead><tbody>");
    }

    private void end() {
        html.append("</tbody></table>");
    }

    private void cell(String text) {
        html.append("<td>").append(escaped(text)).append("</td>");
    }

    private static String percent(long part, long whole) {
        return String.format(Locale.ROOT, "%.0f %%", 100.0 * part / whole);
    }

    /** Formats a number of bytes in the largest unit that leaves at least one. */
    static String size(long bytes) {
        double value = bytes;
        int unit = 0;
        while (value >= 1024 && unit < UNITS.length - 1) {
            value /= 1024;
            unit++;
        }
        return unit == 0 ? bytes + " B" : String.format(Locale.ROOT, "%.1f %s", value, UNITS[unit]);
    }

    /** Escapes text for HTML, in content and in quoted attributes. */
    static String escaped(String text) {
        StringBuilder safe = new StringBuilder(text.length() + 16);
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            switch (c) {
                case '&' -> safe.append("&amp;");
                case '<' -> safe.append("&lt;");
                case '>' -> safe.append("&gt;");
                case '"' -> safe.append("&quot;");
                case '\'' -> safe.append("&#39;");
                default -> safe.append(c);
            }
        }
        return safe.toString();
    }

    @Override
    public String toString() {
        return html.toString();
    }
}
