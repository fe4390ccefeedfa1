package io.sluice.spark.ui;

/** Writes tables that the script of Spark's UI sorts. Escapes all text. */
final class HtmlTables {
    private final StringBuilder html = new StringBuilder(16 * 1024);

    /** Writes HTML as it is. */
    void raw(String text) {
        html.append(text);
    }

    void fact(String name, String value) {
        html.append("<li><strong>")
                .append(escaped(name))
                .append(":</strong> ")
                .append(escaped(value))
                .append("</li>");
    }

    void begin(String title, String id, String... columns) {
        html.append("<h4>").append(escaped(title)).append("</h4>");
        html.append("<div class=\"table-responsive\"><table id=\"").append(id);
        html.append("\" class=\"table table-bordered table-sm table-striped sortable\">");
        html.append("<thead><tr>");
        for (String column : columns) {
            html.append("<th>").append(escaped(column)).append("</th>");
        }
        html.append("</tr></thead><tbody>");
    }

    void end() {
        html.append("</tbody></table></div>");
    }

    /**
     * @param id the target of links to the row; empty for none
     */
    void beginRow(String id) {
        html.append(id.isEmpty() ? "<tr>" : "<tr id=\"" + escaped(id) + "\">");
    }

    void endRow() {
        html.append("</tr>");
    }

    void cell(String text) {
        html.append("<td>").append(escaped(text)).append("</td>");
    }

    void link(String url, String text) {
        html.append("<td>");
        anchor(url, text);
    }

    /** Writes a link whose column is sorted by a number. */
    void link(String url, String text, long number) {
        beginNumber(number);
        anchor(url, text);
    }

    private void anchor(String url, String text) {
        html.append("<a href=\"").append(escaped(url)).append("\">");
        html.append(escaped(text)).append("</a></td>");
    }

    void count(long number) {
        number(number, Units.count(number));
    }

    void size(long bytes) {
        number(bytes, Units.size(bytes));
    }

    void time(long nanos) {
        number(nanos, Units.time(nanos));
    }

    /** Writes a number for readers, and for the script that sorts. */
    void number(long number, String text) {
        beginNumber(number);
        html.append(escaped(text)).append("</td>");
    }

    private void beginNumber(long number) {
        html.append("<td class=\"text-nowrap\" sorttable_customkey=\"")
                .append(number)
                .append("\">");
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
