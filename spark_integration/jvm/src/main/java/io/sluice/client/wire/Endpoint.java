package io.sluice.client.wire;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Where a TaskManager listens: {@code unix:PATH} or {@code HOST:PORT}.
 *
 * @param path the Unix socket's path, or null
 * @param host the host, or null for a Unix socket
 * @param port the port, 0 for a Unix socket
 */
public record Endpoint(String path, String host, int port) {
    private static final String UNIX = "unix:";
    private static final int MAX_PATH_BYTES = 107;

    public static Endpoint tcp(String host, int port) {
        return new Endpoint(null, host, port);
    }

    /**
     * Parses one endpoint.
     *
     * @param localHost replaces {@code {host}} in a path
     * @throws IllegalArgumentException if the text is not an endpoint; the message names the value,
     *     the limit and the remedy
     */
    public static Endpoint parse(String text, String localHost) {
        String trimmed = text.trim();
        if (trimmed.startsWith(UNIX)) {
            String path = trimmed.substring(UNIX.length()).replace("{host}", localHost);
            if (path.isEmpty() || !path.startsWith("/") || path.length() > MAX_PATH_BYTES) {
                throw new IllegalArgumentException(
                        "the socket path '"
                                + path
                                + "' must be absolute and have at most "
                                + MAX_PATH_BYTES
                                + " bytes: write unix:/PATH");
            }
            return new Endpoint(path, null, 0);
        }
        int colon = trimmed.lastIndexOf(':');
        try {
            int port = Integer.parseInt(trimmed.substring(colon + 1));
            if (colon > 0 && port >= 1 && port <= 65535) {
                String host = trimmed.substring(0, colon);
                if (host.startsWith("[") && host.endsWith("]")) {
                    return tcp(host.substring(1, host.length() - 1), port);
                }
                // An IPv6 address without brackets cannot be told from a host with two ports.
                if (host.indexOf(':') < 0) {
                    return tcp(host, port);
                }
            }
        } catch (NumberFormatException e) {
            // The message below says more.
        }
        throw new IllegalArgumentException(
                "'"
                        + trimmed
                        + "' is not an endpoint: write HOST:PORT (port 1 to 65535) or unix:/PATH");
    }

    /** Parses a comma-separated list with at least one endpoint. */
    public static List<Endpoint> parseList(String text, String localHost) {
        List<Endpoint> endpoints = new ArrayList<>();
        for (String part : text.split(",", -1)) {
            if (!part.isBlank()) {
                endpoints.add(parse(part, localHost));
            }
        }
        if (endpoints.isEmpty()) {
            throw new IllegalArgumentException(
                    "the list has no endpoint: write HOST:PORT or unix:/PATH");
        }
        return List.copyOf(endpoints);
    }

    public boolean isUnix() {
        return path != null;
    }

    /** Returns whether a Unix socket exists at the path; false for TCP. */
    public boolean socketExists() {
        return path != null && Files.exists(Path.of(path));
    }

    public SocketAddress address() {
        return path != null ? UnixDomainSocketAddress.of(path) : new InetSocketAddress(host, port);
    }

    @Override
    public String toString() {
        return path != null ? UNIX + path : host + ":" + port;
    }
}
