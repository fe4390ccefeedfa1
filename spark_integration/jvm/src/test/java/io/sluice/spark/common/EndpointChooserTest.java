package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class EndpointChooserTest {
    @Test
    void socketThenOwnHostThenTheOthers(@TempDir Path directory) throws Exception {
        Path socket = directory.resolve("here-own.sock");
        Files.createFile(socket);
        List<Endpoint> endpoints =
                Endpoint.parseList(
                        "unix:/nonexistent.sock, other:7337, own:7337, unix:"
                                + directory
                                + "/here-{host}.sock",
                        "own");
        List<Endpoint> order = EndpointChooser.order(endpoints, "own", "5");
        assertEquals(
                List.of("unix:" + socket, "own:7337", "other:7337", "unix:/nonexistent.sock"),
                order.stream().map(Endpoint::toString).toList());
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
