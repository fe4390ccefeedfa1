package io.sluice.spark.members;

import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The node and the zone of an executor or a TaskManager.
 *
 * @param node empty if it is unknown
 * @param zone empty if it is unknown
 */
public record Places(String node, String zone) {
    private static final Logger LOG = LoggerFactory.getLogger(Places.class);

    public static final Places UNKNOWN = new Places("", "");

    /** Environment variables of an executor, which Kubernetes can fill. */
    public static final String NODE_VARIABLE = "SLUICE_NODE";

    public static final String ZONE_VARIABLE = "SLUICE_ZONE";

    private static final int MAX_LENGTH = 253;

    /**
     * Returns node and zone from the settings, else from the environment.
     *
     * @param node the setting; empty if it is not set
     * @param zone the setting; empty if it is not set
     */
    public static Places of(String node, String zone, Map<String, String> environment) {
        return new Places(
                node.isEmpty() ? variable(NODE_VARIABLE, environment) : node,
                zone.isEmpty() ? variable(ZONE_VARIABLE, environment) : zone);
    }

    /** Returns a variable; empty if it is not set or invalid. */
    private static String variable(String name, Map<String, String> environment) {
        String value = environment.getOrDefault(name, "").trim();
        String problem = problemOf("the environment variable " + name, value);
        if (problem != null) {
            // Shuffles work without it.
            LOG.warn("Ignored: {}", problem);
            return "";
        }
        return value;
    }

    /** Returns what is wrong with a name; null if nothing is. */
    public static String problemOf(String what, String value) {
        boolean isPrintable = value.chars().allMatch(c -> c >= ' ' && c <= '~');
        if (isPrintable && value.length() <= MAX_LENGTH) {
            return null;
        }
        return String.format(
                "%s is '%s', which has %d characters: write at most %d characters of printable"
                        + " ASCII",
                what,
                value.length() > MAX_LENGTH ? value.substring(0, MAX_LENGTH) + "…" : value,
                value.length(),
                MAX_LENGTH);
    }

    /** Returns whether both have a node. */
    public boolean knowsNodes(Places other) {
        return !node.isEmpty() && !other.node.isEmpty();
    }

    public boolean isSameNode(Places other) {
        return !node.isEmpty() && node.equals(other.node);
    }

    public boolean isSameZone(Places other) {
        return !zone.isEmpty() && zone.equals(other.zone);
    }
}
