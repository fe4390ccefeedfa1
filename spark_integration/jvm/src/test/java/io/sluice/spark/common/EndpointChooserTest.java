package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.common.EndpointChooser.Candidate;
import io.sluice.spark.common.EndpointChooser.Chooser;
import io.sluice.spark.members.Places;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class EndpointChooserTest {
    @Test
    void socketsThenOwnHostThenTheOthers() {
        List<Endpoint> endpoints =
                Endpoint.parseList("unix:/a.sock, other:7337, own:7337, unix:/{host}.sock", "own");
        assertEquals(
                List.of("unix:/a.sock", "unix:/own.sock", "own:7337", "other:7337"),
                texts(EndpointChooser.order(endpoints, "own", "5")));
    }

    private static List<String> texts(List<Endpoint> endpoints) {
        return endpoints.stream().map(Endpoint::toString).toList();
    }

    private static Candidate reporting(
            String host, String node, String zone, boolean isDraining, long open, long freeMib) {
        Member.Load load = Member.Load.of(new Places(node, zone), isDraining, open, freeMib << 20);
        Member member = new Member(host, 7337, 7337, load, List.of());
        return new Candidate(member.endpoint(), member);
    }

    private static final Chooser ON_N1 = new Chooser("5", "pod", new Places("n1", "z1"));

    @Test
    void nodeThenZoneThenTheOthers() {
        List<Candidate> candidates =
                List.of(
                        reporting("far", "n3", "z2", false, 0, 1 << 20),
                        reporting("zone", "n2", "z1", false, 100, 10),
                        reporting("near", "n1", "z1", false, 1_000, 10),
                        // On a host of the same name, and known to be on another node.
                        reporting("pod", "n4", "", false, 0, 1 << 20));
        List<String> order = texts(EndpointChooser.order(candidates, ON_N1, true));
        assertEquals(List.of("near:7337", "zone:7337"), order.subList(0, 2));
        assertEquals(
                "pod:7337",
                texts(
                                EndpointChooser.order(
                                        candidates, new Chooser("5", "pod", Places.UNKNOWN), true))
                        .get(0),
                "hosts are compared if the executor has no node");
    }

    @Test
    void theOthersAreOrderedByTheirLoad() {
        List<Candidate> candidates =
                List.of(
                        reporting("busy", "", "", false, 200, 1 << 20),
                        reporting("small", "", "", false, 0, 100),
                        reporting("large", "", "", false, 7, 1 << 20));
        for (int executor = 0; executor < 20; executor++) {
            Chooser chooser = new Chooser(Integer.toString(executor), "x", Places.UNKNOWN);
            assertEquals(
                    List.of("large:7337", "small:7337", "busy:7337"),
                    texts(EndpointChooser.order(candidates, chooser, true)));
        }
    }

    @Test
    void smallDifferencesOfLoadMakeNoDifference() {
        Map<String, Integer> firsts = new HashMap<>();
        for (int executor = 0; executor < 100; executor++) {
            List<Candidate> candidates =
                    List.of(
                            reporting("a", "", "", false, 0, 1_030),
                            reporting("b", "", "", false, 6, 2_000));
            Chooser chooser = new Chooser(Integer.toString(executor), "x", Places.UNKNOWN);
            firsts.merge(
                    EndpointChooser.order(candidates, chooser, true).get(0).host(),
                    1,
                    Integer::sum);
        }
        assertEquals(2, firsts.size(), firsts.toString());
        firsts.values().forEach(count -> assertTrue(count > 25, firsts.toString()));
    }

    @Test
    void mapTasksTryDrainingAndFullTaskManagersLast() {
        List<Candidate> candidates =
                List.of(
                        reporting("near", "n1", "z1", true, 0, 100),
                        reporting("full", "n2", "z1", false, 0, 0),
                        reporting("far", "n3", "z3", false, 0, 100));
        assertEquals(
                List.of("far:7337", "near:7337", "full:7337"),
                texts(EndpointChooser.order(candidates, ON_N1, true)));
        assertEquals(
                List.of("near:7337", "full:7337", "far:7337"),
                texts(EndpointChooser.order(candidates, ON_N1, false)));
    }

    @Test
    void aConfiguredEndpointThatTheDriverDoesNotReachIsLast() {
        List<Candidate> candidates =
                List.of(
                        new Candidate(Endpoint.tcp("dead", 7337), null),
                        new Candidate(Endpoint.tcp("127.0.0.1", 7337), null),
                        reporting("far", "n3", "", false, 0, 100));
        assertEquals(
                List.of("127.0.0.1:7337", "far:7337", "dead:7337"),
                texts(EndpointChooser.order(candidates, ON_N1, true)));
    }

    @Test
    void executorsSpreadEvenlyAndKeepTheirChoiceWhenAnotherEndpointGoes() {
        List<Endpoint> all = Endpoint.parseList("a:1,b:1,c:1,d:1", "x");
        List<Endpoint> fewer = Endpoint.parseList("a:1,b:1,d:1", "x");
        Map<Endpoint, Integer> counts = new HashMap<>();
        for (int executor = 0; executor < 400; executor++) {
            String id = Integer.toString(executor);
            Endpoint first = EndpointChooser.order(all, "x", id).get(0);
            counts.merge(first, 1, Integer::sum);
            if (!first.host().equals("c")) {
                assertEquals(first, EndpointChooser.order(fewer, "x", id).get(0));
            }
        }
        assertEquals(4, counts.size());
        counts.values().forEach(count -> assertTrue(count > 50, counts.toString()));
    }

    /**
     * Adds an endpoint: executors that do not move to it keep their choice, and it takes an equal
     * share from each of the others.
     */
    @Test
    void anAddedEndpointTakesItsShareAndMovesNoOtherExecutor() {
        int executors = 3_000;
        String list = "tm-0.cluster:7337";
        for (int size = 2; size <= 12; size++) {
            List<Endpoint> before = Endpoint.parseList(list, "x");
            list += ",tm-" + (size - 1) + ".cluster:7337";
            List<Endpoint> after = Endpoint.parseList(list, "x");
            Endpoint added = after.get(size - 1);
            Map<Endpoint, Integer> lost = new HashMap<>();
            int moved = 0;
            for (int executor = 0; executor < executors; executor++) {
                List<Endpoint> old = EndpointChooser.order(before, "x", Integer.toString(executor));
                List<Endpoint> now =
                        new java.util.ArrayList<>(
                                EndpointChooser.order(after, "x", Integer.toString(executor)));
                if (now.get(0).equals(added)) {
                    moved++;
                    lost.merge(old.get(0), 1, Integer::sum);
                }
                now.remove(added);
                assertEquals(old, now, "the rest, and its order, is as before");
            }
            double share = (double) executors / size;
            assertTrue(
                    Math.abs(moved - share) < 0.25 * share,
                    moved + " of " + executors + " went to the " + size + "th");
            int fair = moved / (size - 1);
            lost.values()
                    .forEach(count -> assertTrue(count > fair / 3, "not from all alike: " + lost));
            assertEquals(size - 1, lost.size());
        }
    }

    @Test
    void theMessageOnAWrongEndpointSaysTheForm() {
        for (String wrong :
                new String[] {
                    "host", "host:", ":1", "host:0", "host:70000", "unix:", "unix:s", ""
                }) {
            IllegalArgumentException error =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> Endpoint.parseList(wrong, "x"),
                            wrong);
            assertTrue(
                    error.getMessage().contains("HOST:PORT")
                            || error.getMessage().contains("absolute"),
                    error.getMessage());
        }
        assertEquals(Endpoint.tcp("::1", 7), Endpoint.parse("[::1]:7", "x"));
    }

    @Test
    void loopbackAndUnixEndpointsDifferOnEachHost() {
        for (String own :
                new String[] {"unix:/run/s.sock", "127.0.0.1:1", "localhost:1", "[::1]:1"}) {
            assertTrue(EndpointChooser.isOfEachHost(Endpoint.parse(own, "x")), own);
        }
        for (String other : new String[] {"tm1:1", "10.0.0.127:1", "[2001:db8::1]:1"}) {
            assertFalse(EndpointChooser.isOfEachHost(Endpoint.parse(other, "x")), other);
        }
    }
}
