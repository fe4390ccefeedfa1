package io.sluice.client.wire;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Where a TaskManager listens: {@code unix:PATH} or {@code HOST:PORT}, an IPv6 address in brackets.
 *
 * @param path the Unix socket's path, or null
 * @param host the host, or null for a Unix socket
 * @param port the port, 0 for a Unix socket
 */
public record Endpoint(String path, String host, int port) {
    /** The beginning of an endpoint that is a Unix socket. */
    public static final String UNIX = "unix:";

    private static final int MAX_PATH_BYTES = 107;
    private static final int MAX_PORT = 65535;

    /** Without brackets, an IPv6 address would look like a host with two ports. */
    private static final Pattern HOST_PORT =
            Pattern.compile("(?:\\[(.+)\\]|([^:\\[\\]]+)):([0-9]{1,9})");

    public static Endpoint tcp(String host, int port) {
        return new Endpoint(null, host, port);
    }

    /**
     * Parses one endpoint.
     *
     * @param localHost replaces {@code {host}} in a path
     * @throws IllegalArgumentException if the text is not an endpoint
     */
    public static Endpoint parse(String text, String localHost) {
        String trimmed = text.trim();
        if (trimmed.startsWith(UNIX)) {
            String path = trimmed.substring(UNIX.length()).replace("{host}", localHost);
            if (path.isEmpty() || !path.startsWith("/") || path.length() > MAX_PATH_BYTES) {
                throw new IllegalArgumentException(
                        String.format(
                                "the socket path '%s' must be absolute and have at most %d bytes:"
                                        + " write unix:/PATH",
                                path, MAX_PATH_BYTES));
            }
            return new Endpoint(path, null, 0);
        }
        Matcher hostPort = HOST_PORT.matcher(trimmed);
        int port = hostPort.matches() ? Integer.parseInt(hostPort.group(3)) : 0;
        if (port < 1 || port > MAX_PORT) {
            throw new IllegalArgumentException(
                    "'"
                            + trimmed
                            + "' is not an endpoint: write HOST:PORT (port 1 to 65535) or"
                            + " unix:/PATH");
        }
        return tcp(hostPort.group(1) != null ? hostPort.group(1) : hostPort.group(2), port);
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

    /**
     * Returns where another data process of the same TaskManager listens: at the port that is as
     * far from this one as the processes are, or at the path of process 0, a dot and the process.
     *
     * @param own the process behind this endpoint
     * @return this endpoint if it does not have the form that leads to the others
     */
    public Endpoint ofProcess(int own, int other) {
        if (own == other) {
            return this;
        }
        if (path == null) {
            int otherPort = port + Message.PROCESS_PORT_STEP * (other - own);
            return otherPort < 1 || otherPort > MAX_PORT ? this : tcp(host, otherPort);
        }
        String suffix = own == 0 ? "" : "." + own;
        if (!path.endsWith(suffix)) {
            return this;
        }
        String first = path.substring(0, path.length() - suffix.length());
        return new Endpoint(other == 0 ? first : first + "." + other, null, 0);
    }

    public SocketAddress address() {
        return path != null ? UnixDomainSocketAddress.of(path) : new InetSocketAddress(host, port);
    }

    @Override
    public String toString() {
        if (path != null) {
            return UNIX + path;
        }
        return (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + port;
    }
}
