package io.sluice;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Checks that packages use only the packages below them, so that there are no cycles. */
class LayeringTest {
    private static final Path SOURCES = Path.of("src/main/java");
    private static final String CLIENT = "client.";
    private static final String ROOT = "io.sluice.";

    /** The packages that each package may use, below {@code io.sluice}; a package comes once. */
    private static final Map<String, Set<String>> LAYERS =
            Map.ofEntries(
                    layer("client.wire"),
                    layer("client.auth", "client.wire"),
                    layer("client.tls", "client.wire"),
                    layer("client.failover", "client.wire"),
                    layer("client.connection", "client.auth", "client.tls", "client.failover"),
                    layer("client.gate", "client.connection"),
                    layer("client.output", "client.connection"),
                    layer("spark.members", "client.wire"),
                    layer("spark.settings", "client.gate", "client.output", "spark.members"),
                    layer("spark.common", "spark.settings"),
                    layer("spark.registration", "spark.common"),
                    layer("spark.outputs", "spark.common"),
                    layer("spark.driver", "spark.registration", "spark.outputs"),
                    layer("spark.executor", "spark.common"),
                    layer("spark.ui", "spark.driver"),
                    layer("spark.writer", "spark.executor"),
                    layer("spark.reader", "spark.executor"),
                    layer("spark.pipelined", "spark.executor"),
                    layer("spark", "spark.ui", "spark.writer", "spark.reader", "spark.pipelined"));

    /** Users type these names in settings. */
    private static final Set<String> LOADED_BY_SPARK =
            Set.of(
                    "SluicePlugin",
                    "SluiceShuffleManager",
                    "SluiceShuffleDataIO",
                    "SluiceStreamingShuffleManager");

    /** The packages outside of {@code io.sluice} that the client may use. */
    private static final List<String> CLIENT_LIBRARIES =
            List.of("java.", "javax.net.ssl.", "javax.crypto.", "org.msgpack.", "org.slf4j.");

    private static final Pattern PACKAGE = Pattern.compile("(?m)^package io\\.sluice\\.([\\w.]+);");

    /** A qualified name, in an import or elsewhere in code: package and class. */
    private static final Pattern NAME =
            Pattern.compile("(?<![\\w.\"])((?:[a-z][\\w$]*\\.)+)[A-Z$]\\w*");

    private static final Pattern COMMENT_OR_TEXT =
            Pattern.compile("(?s)/\\*.*?\\*/|//[^\\n]*|\"(?:\\\\.|[^\"\\\\\\n])*\"");

    /** A class, its package below {@code io.sluice}, and the packages that its code names. */
    private record Source(String packageName, String className, Set<String> uses) {}

    private static Map.Entry<String, Set<String>> layer(String name, String... below) {
        return Map.entry(name, Set.of(below));
    }

    /** Returns the package and all packages below it. */
    private static Set<String> reach(String packageName) {
        Set<String> found = new TreeSet<>(Set.of(packageName));
        LAYERS.getOrDefault(packageName, Set.of()).forEach(below -> found.addAll(reach(below)));
        return found;
    }

    private static List<Source> sources() throws IOException {
        try (Stream<Path> files = Files.walk(SOURCES)) {
            List<Source> sources = new ArrayList<>();
            for (Path file : files.filter(path -> path.toString().endsWith(".java")).toList()) {
                sources.add(source(file));
            }
            assertFalse(sources.isEmpty(), "no source was found");
            return sources;
        }
    }

    private static Source source(Path file) throws IOException {
        String code = COMMENT_OR_TEXT.matcher(Files.readString(file)).replaceAll(" ");
        Matcher declared = PACKAGE.matcher(code);
        if (!declared.find()) {
            throw new IllegalStateException(file + " declares no package below " + ROOT);
        }
        Set<String> uses = new TreeSet<>();
        NAME.matcher(code)
                .results()
                .map(found -> found.group(1).replaceAll("\\.$", ""))
                .forEach(uses::add);
        String className = file.getFileName().toString().replace(".java", "");
        return new Source(declared.group(1), className, uses);
    }

    @Test
    void packagesUseOnlyThoseBelow() throws IOException {
        List<String> wrong = new ArrayList<>();
        for (Source source : sources()) {
            Set<String> allowed = reach(source.packageName());
            source.uses().stream()
                    .filter(name -> name.startsWith(ROOT))
                    .map(name -> name.substring(ROOT.length()))
                    .filter(name -> !allowed.contains(name))
                    .forEach(name -> wrong.add(source.className() + " uses " + name));
        }
        assertEquals(List.of(), wrong);
    }

    @Test
    void everyPackageIsInTheTable() throws IOException {
        Set<String> found = new TreeSet<>();
        sources().forEach(source -> found.add(source.packageName()));
        assertEquals(new TreeSet<>(LAYERS.keySet()), found);
    }

    @Test
    void theClientUsesNeitherSparkNorScala() throws IOException {
        List<String> wrong = new ArrayList<>();
        for (Source source : sources()) {
            if (source.packageName().startsWith(CLIENT)) {
                source.uses().stream()
                        .filter(name -> !name.startsWith(ROOT + CLIENT))
                        .filter(
                                name ->
                                        CLIENT_LIBRARIES.stream()
                                                .noneMatch((name + ".")::startsWith))
                        .forEach(name -> wrong.add(source.className() + " uses " + name));
            }
        }
        assertEquals(List.of(), wrong);
    }

    @Test
    void classesThatUsersNameKeepTheirPackage() throws IOException {
        Set<String> found = new TreeSet<>();
        sources().stream()
                .filter(source -> source.packageName().equals("spark"))
                .map(Source::className)
                .forEach(found::add);
        found.retainAll(LOADED_BY_SPARK);
        assertEquals(new TreeSet<>(LOADED_BY_SPARK), found);
    }
}
