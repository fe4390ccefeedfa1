package io.sluice;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Checks that imports go down only: from the classes that Spark loads to the parts, from these to
 * the shared classes of the plugin, and from these to the client.
 *
 * <p>A part knows no other part. The classes that Spark loads are in one package with the shared
 * classes, so they are told apart by name.
 */
class LayeringTest {
    private static final Path SOURCES = Path.of("src/main/java");
    private static final String CLIENT = "io.sluice.client";
    private static final String SPARK = "io.sluice.spark";
    private static final Set<String> PARTS = Set.of("writer", "reader", "ui", "pipelined");
    private static final Set<String> SHARED =
            Set.of("settings", "common", "registration", "outputs", "driver", "executor");

    /** Users type these names in settings. */
    private static final Set<String> LOADED_BY_SPARK =
            Set.of(
                    "SluicePlugin",
                    "SluiceShuffleManager",
                    "SluiceShuffleDataIO",
                    "SluiceStreamingShuffleManager");

    /** The packages of the JDK: java.base has those of TLS, too. */
    private static final List<String> JDK = List.of("java.", "javax.net.ssl.", "javax.crypto.");

    /** The libraries that the client may use beside the JDK. */
    private static final List<String> CLIENT_LIBRARIES = List.of("org.msgpack.", "org.slf4j.");

    private static final Pattern PACKAGE = Pattern.compile("(?m)^package ([\\w.]+);");

    /** A qualified name, in an import or elsewhere in code. */
    private static final Pattern NAME =
            Pattern.compile("(?<![\\w.\"])(?:[a-z][\\w$]*\\.)+[A-Z$]\\w*(?:\\.\\w+)*");

    private static final Pattern COMMENT_OR_TEXT =
            Pattern.compile("(?s)/\\*.*?\\*/|//[^\\n]*|\"(?:\\\\.|[^\"\\\\\\n])*\"");

    /** One class of the main sources, and the qualified names in its code. */
    private record Source(String packageName, String className, Set<String> names) {
        boolean isIn(String other) {
            return packageName.equals(other) || packageName.startsWith(other + ".");
        }

        boolean isLoadedBySpark() {
            return packageName.equals(SPARK) && LOADED_BY_SPARK.contains(className);
        }

        /** Returns the part that this class belongs to, or an empty text. */
        String part() {
            return partOf(packageName + ".");
        }

        List<String> wrong(Predicate<String> forbidden) {
            return names.stream()
                    .filter(forbidden)
                    .map(name -> packageName + "." + className + " uses " + name)
                    .toList();
        }
    }

    private static List<Source> sources() throws IOException {
        try (Stream<Path> files = Files.walk(SOURCES)) {
            List<Source> sources = new ArrayList<>();
            for (Path file : files.filter(path -> path.toString().endsWith(".java")).toList()) {
                sources.add(source(file));
            }
            return sources;
        }
    }

    private static Source source(Path file) throws IOException {
        String code = COMMENT_OR_TEXT.matcher(Files.readString(file)).replaceAll(" ");
        Matcher declared = PACKAGE.matcher(code);
        if (!declared.find()) {
            throw new IllegalStateException(file + " declares no package");
        }
        Set<String> names = new TreeSet<>();
        NAME.matcher(code).results().forEach(found -> names.add(found.group()));
        String className = file.getFileName().toString().replace(".java", "");
        return new Source(declared.group(1), className, names);
    }

    private static List<String> wrong(
            Predicate<Source> chosen, java.util.function.BiPredicate<Source, String> forbidden)
            throws IOException {
        List<Source> sources = sources().stream().filter(chosen).toList();
        assertFalse(sources.isEmpty(), "no source was looked at");
        return sources.stream()
                .flatMap(source -> source.wrong(name -> forbidden.test(source, name)).stream())
                .toList();
    }

    private static String partOf(String name) {
        return PARTS.stream()
                .filter(part -> name.startsWith(SPARK + "." + part + "."))
                .findFirst()
                .orElse("");
    }

    private static boolean isLoadedBySpark(String name) {
        return LOADED_BY_SPARK.stream()
                .map(loaded -> SPARK + "." + loaded)
                .anyMatch(loaded -> name.equals(loaded) || name.startsWith(loaded + "."));
    }

    @Test
    void theClientKnowsNeitherSparkNorItsPlugin() throws IOException {
        assertEquals(
                List.of(),
                wrong(
                        source -> source.isIn(CLIENT),
                        (source, name) ->
                                JDK.stream().noneMatch(name::startsWith)
                                        && !name.startsWith(CLIENT + ".")
                                        && CLIENT_LIBRARIES.stream().noneMatch(name::startsWith)));
    }

    @ParameterizedTest
    @ValueSource(strings = {"writer", "reader", "ui", "pipelined"})
    void aPartKnowsNoOtherPartAndNothingThatSparkLoads(String part) throws IOException {
        assertEquals(
                List.of(),
                wrong(
                        source -> source.part().equals(part),
                        (source, name) ->
                                isLoadedBySpark(name)
                                        || (!partOf(name).isEmpty()
                                                && !partOf(name).equals(part))));
    }

    @Test
    void onlyTheClassesThatSparkLoadsKnowTheParts() throws IOException {
        assertEquals(
                List.of(),
                wrong(
                        source -> source.packageName().equals(SPARK) && !source.isLoadedBySpark(),
                        (source, name) -> !partOf(name).isEmpty()));
    }

    @Test
    void everyPackageHasAPlaceInTheOrder() throws IOException {
        List<String> packages =
                sources().stream()
                        .map(Source::packageName)
                        .filter(name -> !name.startsWith(CLIENT + ".") && !name.equals(SPARK))
                        .filter(
                                name ->
                                        SHARED.stream()
                                                .noneMatch(s -> name.equals(SPARK + "." + s)))
                        .filter(name -> partOf(name + ".").isEmpty())
                        .toList();
        assertEquals(List.of(), packages);
    }

    @Test
    void theNamesThatUsersTypeAreThere() throws IOException {
        List<String> loaded =
                sources().stream()
                        .filter(Source::isLoadedBySpark)
                        .map(Source::className)
                        .sorted()
                        .toList();
        assertEquals(LOADED_BY_SPARK.stream().sorted().toList(), loaded);
    }
}
