package io.sluice.spark.settings;

import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.Places;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.LongSupplier;
import org.apache.spark.SparkConf;
import scala.Option;
import scala.Tuple2;

/** Reads settings and collects problems. */
final class SettingsReader {
    private final SparkConf conf;
    private final List<SluiceSettings.Entry> entries;
    private final List<String> problems = new ArrayList<>();
    private final Map<String, String> defaults = new LinkedHashMap<>();

    SettingsReader(SparkConf conf, List<SluiceSettings.Entry> entries) {
        this.conf = conf;
        this.entries = entries;
        entries.forEach(entry -> defaults.put(entry.key(), entry.defaultValue()));
    }

    /** Returns a setting or its default, as it is written. */
    String text(String key) {
        return conf.get(key, defaults.get(key));
    }

    /** Returns a setting with variables replaced, as Spark does; null if it is not set or empty. */
    String given(String key) {
        Option<String> value = conf.getWithSubstitution(key);
        return value.isEmpty() || value.get().isBlank() ? null : value.get();
    }

    void problem(String text) {
        problems.add(text);
    }

    String endpoints(String key) {
        String text = text(key);
        try {
            EndpointList unused = EndpointList.parse(text, "host");
        } catch (IllegalArgumentException e) {
            problem(String.format("%s is '%s': %s", key, text, e.getMessage()));
        }
        return text;
    }

    /** Returns the name of a node or zone; empty if it is not set. */
    String place(String key) {
        String text = text(key).trim();
        String problem = Places.problemOf(key, text);
        if (problem != null) {
            problem(problem);
        }
        return text;
    }

    boolean isTrue(String key) {
        return oneOf(key, "true", "false").equals("true");
    }

    String oneOf(String key, String... values) {
        String text = conf.get(key, defaults.get(key)).trim().toLowerCase(Locale.ROOT);
        if (!List.of(values).contains(text)) {
            problem(
                    String.format(
                            "%s is '%s': must be one of %s", key, text, String.join(", ", values)));
        }
        return text;
    }

    String url(String key) {
        String text = conf.get(key, defaults.get(key)).trim();
        if (!text.isEmpty() && !text.startsWith("http://") && !text.startsWith("https://")) {
            problem(
                    String.format(
                            "%s is '%s': write a URL that begins with http:// or https://, or leave"
                                    + " it empty",
                            key, text));
        }
        return text;
    }

    long time(String key, long least, long most) {
        return ranged(key, least, most, "ms", () -> conf.getTimeAsMs(key, defaults.get(key)));
    }

    long size(String key, long least, long most) {
        return ranged(key, least, most, "bytes", () -> conf.getSizeAsBytes(key, defaults.get(key)));
    }

    long number(String key, long least, long most) {
        return ranged(
                key,
                least,
                most,
                "",
                () -> Long.parseLong(conf.get(key, defaults.get(key)).trim()));
    }

    private long ranged(String key, long least, long most, String unit, LongSupplier read) {
        String form =
                "write a "
                        + entries.stream()
                                .filter(e -> e.key().equals(key))
                                .findFirst()
                                .orElseThrow()
                                .form();
        try {
            long value = read.getAsLong();
            if (value < least || value > most) {
                problem(
                        String.format(
                                "%s is %s: must be between %d and %d; %s",
                                key, (value + " " + unit).trim(), least, most, form));
            }
            return value;
        } catch (RuntimeException e) {
            problem(String.format("%s is '%s': %s", key, conf.get(key, ""), form));
            return least;
        }
    }

    void unknownKeys(String prefix) {
        for (Tuple2<String, String> setting : conf.getAll()) {
            String key = setting._1();
            if (key.startsWith(prefix) && !defaults.containsKey(key)) {
                problem(key + " is unknown; there are " + String.join(", ", defaults.keySet()));
            }
        }
    }

    void refuse(String key, String why) {
        if (conf.getBoolean(key, false)) {
            problem(String.format("%s is true: %s; set it to false", key, why));
        }
    }

    void finish() {
        if (!problems.isEmpty()) {
            throw new IllegalArgumentException(
                    "Sluice cannot start with these settings:\n  " + String.join("\n  ", problems));
        }
    }
}
