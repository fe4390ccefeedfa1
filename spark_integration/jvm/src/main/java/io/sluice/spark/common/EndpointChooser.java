package io.sluice.spark.common;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.Places;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * Orders the TaskManagers for an executor: a Unix socket, then its own node, its zone, and the
 * others by their load. Equal TaskManagers are ordered by rendezvous hashing, so that executors
 * spread evenly and keep their choice.
 */
public final class EndpointChooser {
    private static final int UNIX = 0;
    private static final int OWN_NODE = 1;
    private static final int OWN_ZONE = 2;
    private static final int ELSEWHERE = 3;

    /** Rank if the driver is connected to other TaskManagers, but not to this one. */
    private static final int UNKNOWN = 4;

    /** Added for map tasks if the TaskManager refuses map outputs. */
    private static final int REFUSES = 10;

    private EndpointChooser() {}

    /**
     * An executor that chooses.
     *
     * @param host its host, as Spark names it
     */
    public record Chooser(String executorId, String host, Places places) {}

    /**
     * An endpoint, and the TaskManager there if it is known.
     *
     * @param member null if it is not known
     */
    public record Candidate(Endpoint endpoint, Member member) {}

    /** Orders endpoints without known members; Unix sockets first. */
    public static List<Endpoint> order(
            List<Endpoint> endpoints, String ownHost, String executorId) {
        return order(
                endpoints.stream().map(endpoint -> new Candidate(endpoint, null)).toList(),
                new Chooser(executorId, ownHost, Places.UNKNOWN),
                false);
    }

    /**
     * Orders candidates as above.
     *
     * @param writes whether TaskManagers that refuse map outputs come last
     */
    public static List<Endpoint> order(
            List<Candidate> candidates, Chooser chooser, boolean writes) {
        boolean anyKnown = candidates.stream().anyMatch(each -> each.member() != null);
        List<Candidate> ordered = new ArrayList<>(candidates);
        // The sort is stable: equal ranks and weights keep the order of the setting.
        ordered.sort(
                Comparator.comparingInt((Candidate each) -> rank(each, chooser, writes, anyKnown))
                        .thenComparingInt(each -> load(each).writers())
                        .thenComparingInt(each -> -load(each).free())
                        .thenComparingLong(each -> -weight(each.endpoint(), chooser)));
        return ordered.stream().map(Candidate::endpoint).toList();
    }

    private static Member.Load load(Candidate candidate) {
        Member member = candidate.member();
        return member == null || member.load() == null ? NO_LOAD : member.load();
    }

    private static final Member.Load NO_LOAD = new Member.Load(Places.UNKNOWN, false, 0, 0);

    /** Returns whether the endpoint is a different TaskManager on each host. */
    public static boolean isOfEachHost(Endpoint endpoint) {
        if (endpoint.isUnix()) {
            return true;
        }
        String host = endpoint.host();
        return host.equals("localhost") || host.startsWith("127.") || host.equals("::1");
    }

    private static int rank(
            Candidate candidate, Chooser chooser, boolean writes, boolean anyKnown) {
        Endpoint endpoint = candidate.endpoint();
        Member member = candidate.member();
        if (endpoint.isUnix()) {
            return UNIX;
        }
        if (member == null) {
            if (endpoint.host().equals(chooser.host()) || (anyKnown && isOfEachHost(endpoint))) {
                return OWN_NODE;
            }
            return anyKnown ? UNKNOWN : ELSEWHERE;
        }
        int rank = place(member, endpoint, chooser);
        return writes && member.load() != null && member.load().refusesOutputs()
                ? rank + REFUSES
                : rank;
    }

    private static int place(Member member, Endpoint endpoint, Chooser chooser) {
        boolean isNear =
                chooser.places().knowsNodes(member.places())
                        ? chooser.places().isSameNode(member.places())
                        : endpoint.host().equals(chooser.host())
                                || member.host().equals(chooser.host());
        if (isNear) {
            return OWN_NODE;
        }
        return chooser.places().isSameZone(member.places()) ? OWN_ZONE : ELSEWHERE;
    }

    private static long weight(Endpoint endpoint, Chooser chooser) {
        return endpoint.isUnix() ? 0 : hash(chooser.executorId() + "@" + endpoint) >>> 1;
    }

    /**
     * FNV-1a with mixed bits. The checksums of two endpoints would differ in the same bits for
     * every executor, so too many executors would agree on their order.
     */
    private static long hash(String text) {
        long hash = 0xCBF2_9CE4_8422_2325L;
        for (byte b : text.getBytes(java.nio.charset.StandardCharsets.UTF_8)) {
            hash = (hash ^ (b & 0xFF)) * 0x0000_0100_0000_01B3L;
        }
        hash = (hash ^ hash >>> 33) * 0xFF51_AFD7_ED55_8CCDL;
        hash = (hash ^ hash >>> 33) * 0xC4CE_B9FE_1A85_EC53L;
        return hash ^ hash >>> 33;
    }
}
