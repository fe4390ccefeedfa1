package io.sluice.spark.members;

import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Unix sockets in one directory, one of each TaskManager.
 *
 * @param directory an absolute path
 * @param pattern for their names, with {@code *}, {@code ?} and {@code [...]}
 */
public record SocketGlob(String directory, String pattern) {
    private static final Logger LOG = LoggerFactory.getLogger(SocketGlob.class);

    /** Maximum length of the path of a Unix socket, in bytes. */
    private static final int MAX_PATH_BYTES = 107;

    private static final Pattern WILDCARD = Pattern.compile("[*?\\[]");

    /** The socket of a further data process: the path of the first, a dot and a number. */
    private static final Pattern FURTHER_PROCESS = Pattern.compile("(.+)\\.[1-9][0-9]{0,2}");

    /** Returns whether an endpoint has a wildcard. */
    static boolean isGlob(String item) {
        return WILDCARD.matcher(item).find();
    }

    /**
     * Parses {@code unix:/PATH} with a wildcard in its last component.
     *
     * @param localHost replaces {@code {host}}
     * @throws IllegalArgumentException if the text is not such a path
     */
    static SocketGlob parse(String item, String localHost) {
        String path = item.substring(Endpoint.UNIX.length()).replace("{host}", localHost);
        int slash = path.lastIndexOf('/');
        if (!path.startsWith("/") || path.length() > MAX_PATH_BYTES || isGlob(path, slash)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the socket path '%s' must be absolute, have at most %d bytes, and a"
                                    + " wildcard only after its last slash: write"
                                    + " unix:/DIRECTORY/*.sock",
                            path, MAX_PATH_BYTES));
        }
        String pattern = path.substring(slash + 1);
        SocketGlob glob = new SocketGlob(path.substring(0, Math.max(1, slash)), pattern);
        try {
            Path.of("/").getFileSystem().getPathMatcher("glob:" + glob.literalBraces());
        } catch (PatternSyntaxException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "the socket path '%s' is not a pattern (%s): close each [ with ]",
                            path, e.getDescription()),
                    e);
        }
        return glob;
    }

    private static boolean isGlob(String path, int slash) {
        return WILDCARD.matcher(path.substring(0, slash)).find();
    }

    /** Returns the pattern with literal braces, which Java's patterns take as alternatives. */
    private String literalBraces() {
        return pattern.replace("\\", "\\\\").replace("{", "\\{").replace("}", "\\}");
    }

    /** Returns the sockets that there are now, one of each TaskManager, in the order of names. */
    public List<Endpoint> sockets() {
        Set<String> found = new TreeSet<>();
        try (DirectoryStream<Path> matches =
                Files.newDirectoryStream(Path.of(directory), literalBraces())) {
            for (Path match : matches) {
                if (isSocket(match)) {
                    found.add(match.toString());
                }
            }
        } catch (IOException | DirectoryIteratorException e) {
            // Before the TaskManager starts there may be no directory.
            LOG.debug("{} cannot be listed", directory, e);
        }
        return found.stream()
                .filter(path -> !isOfFurtherProcess(path))
                .map(path -> new Endpoint(path, null, 0))
                .toList();
    }

    private static boolean isOfFurtherProcess(String path) {
        var numbered = FURTHER_PROCESS.matcher(path);
        return numbered.matches() && isSocket(Path.of(numbered.group(1)));
    }

    private static boolean isSocket(Path path) {
        try {
            return Files.readAttributes(path, BasicFileAttributes.class).isOther();
        } catch (IOException e) {
            LOG.debug("{} has gone", path, e);
            return false;
        }
    }

    @Override
    public String toString() {
        return Endpoint.UNIX + directory + (directory.endsWith("/") ? "" : "/") + pattern;
    }
}
