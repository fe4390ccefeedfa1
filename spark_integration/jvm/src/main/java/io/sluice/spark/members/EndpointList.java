package io.sluice.spark.members;

import io.sluice.client.wire.Endpoint;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The value of {@code spark.sluice.endpoints} as one host sees it.
 *
 * @param fixed HOST:PORT and Unix sockets without a wildcard
 * @param names DNS names, each with several TaskManagers
 * @param globs patterns of Unix sockets, each with several TaskManagers
 */
public record EndpointList(List<Endpoint> fixed, List<DnsName> names, List<SocketGlob> globs) {
    /** The beginning of a name to resolve. */
    public static final String DNS = "dns:";

    /** Default data port of a TaskManager. */
    public static final int DEFAULT_PORT = 7337;

    private static final int MAX_PORT = 65535;
    private static final int MAX_NAME = 253;
    private static final Pattern NAME =
            Pattern.compile("([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)([.][A-Za-z0-9_-]+)*[.]?");
    private static final Pattern NAME_PORT = Pattern.compile("([^:]*)(?::([0-9]{1,9}))?");
    private static final Pattern ADDRESS = Pattern.compile("[0-9.]+");

    /**
     * A name each of whose addresses is a TaskManager.
     *
     * @param port the data port of all of them
     */
    public record DnsName(String name, int port) {
        @Override
        public String toString() {
            return DNS + name + ":" + port;
        }
    }

    public EndpointList {
        fixed = List.copyOf(fixed);
        names = List.copyOf(names);
        globs = List.copyOf(globs);
    }

    /**
     * Parses a comma-separated list with at least one item.
     *
     * @param localHost replaces {@code {host}} in a path
     * @throws IllegalArgumentException if the text is not such a list
     */
    public static EndpointList parse(String text, String localHost) {
        List<Endpoint> fixed = new ArrayList<>();
        Set<DnsName> names = new LinkedHashSet<>();
        Set<SocketGlob> globs = new LinkedHashSet<>();
        for (String part : text.split(",", -1)) {
            String item = part.trim();
            if (item.startsWith(DNS)) {
                names.add(parseName(item));
            } else if (item.startsWith(Endpoint.UNIX) && SocketGlob.isGlob(item)) {
                globs.add(SocketGlob.parse(item, localHost));
            } else if (!item.isEmpty()) {
                fixed.add(Endpoint.parse(item, localHost));
            }
        }
        if (fixed.isEmpty() && names.isEmpty() && globs.isEmpty()) {
            throw new IllegalArgumentException(
                    "the list has no endpoint: write HOST:PORT, dns:NAME[:PORT] or unix:/PATH");
        }
        return new EndpointList(fixed, List.copyOf(names), List.copyOf(globs));
    }

    private static DnsName parseName(String item) {
        Matcher found = NAME_PORT.matcher(item.substring(DNS.length()));
        String name = found.matches() ? found.group(1) : "";
        if (name.length() > MAX_NAME
                || !NAME.matcher(name).matches()
                || ADDRESS.matcher(name).matches()) {
            throw new IllegalArgumentException(
                    String.format(
                            "'%s' has no host name of at most %d characters: write dns:NAME or"
                                    + " dns:NAME:PORT, and an address as HOST:PORT",
                            item, MAX_NAME));
        }
        int port = found.group(2) == null ? DEFAULT_PORT : Integer.parseInt(found.group(2));
        if (port < 1 || port > MAX_PORT) {
            throw new IllegalArgumentException(
                    String.format(
                            "the port of '%s' is %d, and must be between 1 and %d",
                            item, port, MAX_PORT));
        }
        return new DnsName(name, port);
    }

    /** Returns the fixed endpoints, and those of the sockets that match a glob now. */
    public List<Endpoint> local() {
        if (globs.isEmpty()) {
            return fixed;
        }
        List<Endpoint> all = new ArrayList<>(fixed);
        globs.forEach(glob -> all.addAll(glob.sockets()));
        return List.copyOf(new LinkedHashSet<>(all));
    }

    /** Returns whether the list has only names to resolve. */
    public boolean isOnlyNames() {
        return fixed.isEmpty() && globs.isEmpty();
    }

    /** Returns the items that are reached over TCP, as they are written. */
    public List<String> tcp() {
        List<String> all = new ArrayList<>();
        fixed.stream().filter(each -> !each.isUnix()).map(Endpoint::toString).forEach(all::add);
        names.stream().map(DnsName::toString).forEach(all::add);
        return all;
    }
}
